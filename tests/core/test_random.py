import torch

from concordfl import Key


def test_every_part_of_a_key_matters():
    keys = [Key(0), Key(1), Key("0"), Key(0, 0), Key(0, "a"), Key(0, "a", 1), Key(0, "a1")]
    assert len({key.number for key in keys}) == len(keys)


def test_a_key_always_gives_the_same_draws():
    # A recorded value: a change here changes every run of every user.
    assert (
        Key(7, 3, "client-1", "fit", 0).permutation(8).tolist()
        == Key(7, 3).child("client-1", "fit", 0).permutation(8).tolist()
    )
    assert Key(0, "shuffle").number == 308209294275120254041579029207800432096
    assert sorted(Key(1).permutation(50).tolist()) == list(range(50))


def test_draws_have_the_distribution_they_are_named_for():
    key = Key("moments")
    assert abs(key.normal((20_000,), std=2.0).std().item() - 2) < 0.05
    assert abs(key.laplace((20_000,), scale=2.0).abs().mean().item() - 2) < 0.05
    uniform = key.uniform((20_000,))
    assert abs(uniform.mean().item() - 0.5) < 0.01
    assert 0 <= uniform.min().item() <= uniform.max().item() < 1


def test_the_global_generator_is_seeded_inside_and_untouched_outside():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with Key(1).torch_global():
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with Key(1).torch_global():
        assert torch.equal(torch.rand(3), first)
