import pytest
import torch
import torch.nn.functional as F
from torch import nn

from concordfl import SettingError, Training
from concordfl.core.optim import Cosine, MultiStep, Step, adam, sgd


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (sgd(), lambda p: torch.optim.SGD(p, lr=0.1)),
        (sgd(0.9, 0.01), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
        (adam(weight_decay=0.01), lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01)),
    ],
)
def test_the_same_bits_as_torch_optim(ours, theirs):
    torch.manual_seed(0)
    left = nn.Linear(4, 3)
    right = nn.Linear(4, 3)
    right.load_state_dict(left.state_dict())
    oracle = theirs(right.parameters())
    params = list(left.parameters())
    state = ours.init(params)
    for _ in range(5):
        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        grads = list(torch.autograd.grad(F.cross_entropy(left(x), y), params))
        state = ours.update(params, grads, state, 0.1)
        oracle.zero_grad()
        F.cross_entropy(right(x), y).backward()
        oracle.step()
    for a, b in zip(left.parameters(), right.parameters(), strict=True):
        assert torch.equal(a, b)


def test_schedules():
    assert [Training(lr=1.0).rate(r) for r in (0, 50)] == [1, 1]
    step = Training(lr=1.0, schedule=Step(every=10, gamma=0.5))
    assert [step.rate(r) for r in (0, 9, 10, 25)] == [1, 1, 0.5, 0.25]
    multi = Training(lr=1.0, schedule=MultiStep(milestones=(3, 5), gamma=0.1))
    assert [multi.rate(r) for r in (2, 3, 5)] == pytest.approx([1, 0.1, 0.01])


def test_the_cosine_schedule_is_that_of_pytorch_and_then_stays():
    ours = Training(lr=0.5, schedule=Cosine(rounds=8, final=0.1))
    oracle = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(oracle, T_max=8, eta_min=0.05)
    for round in range(9):
        assert ours.rate(round) == pytest.approx(theirs.get_last_lr()[0])
        oracle.step()
        theirs.step()
    assert ours.rate(100) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", -0.1),
        ("lr", 0),
        ("batch_size", 0),
        ("momentum", 1.0),
        ("epochs", 0),
        ("optimizer", "x"),
    ],
)
def test_bad_training_settings_are_refused(name, value):
    with pytest.raises(SettingError, match=f"^{name} must be "):
        Training(**{name: value})
