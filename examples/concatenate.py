"""Why FedConcat concatenates: theorem 1 of its paper in numbers, with two clients that share no
class.

Each client trains an encoder on its own digits. How much does a frozen encoder tell of all ten
digits? The lower the loss of a linear classifier on its features, the more: one client's encoder,
the average of both, and both side by side. `python examples/concatenate.py`
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from concordfl import Classification, Client, Examples, Model, Training, tree
from concordfl.models import make_builder

x, y = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    torch.tensor(x / 16).float(), torch.tensor(y), random_state=0
)
model = Model(make_builder("mlp", (64,), 10, {"hidden": [32]}))
training = Training(lr=0.1, momentum=0.9, batch_size=32, epochs=50)


def train_on(name: str, classes: range) -> dict[str, torch.Tensor]:
    """A client with these classes only, all starting from the same model."""
    own = torch.isin(y_train, torch.tensor(classes))
    examples = Examples(x_train[own], y_train[own])
    return Client(
        name,
        examples,
        objective=Classification(10),
        model=model,
        training=training,
        seed=0,
        round=0,
    ).fit(model.init(0))


def loss_of(*encoders: dict[str, torch.Tensor]) -> float:
    """Test loss of a linear classifier of all digits on the encoders' features side by side."""
    train, test = (
        np.hstack([model.features(encoder, inputs) for encoder in encoders])
        for inputs in (x_train, x_test)
    )
    return log_loss(
        y_test, LogisticRegression(max_iter=5000).fit(train, y_train).predict_proba(test)
    )


first, second = train_on("first", range(5)), train_on("second", range(5, 10))
average = tree.scale(tree.add(first, second), 0.5)
for name, encoders in {
    "first": [first],
    "second": [second],
    "average": [average],
    "both": [first, second],
}.items():
    print(f"{name:8} {loss_of(*encoders):.4f}")
