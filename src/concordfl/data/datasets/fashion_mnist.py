"""Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 images of clothing, 28x28, ten classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..dataset import FileSource, Form, Remote
from .formats import IDX_FILES, images_from_idx

HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"


@dataclass(frozen=True)
class FashionMnist(FileSource):
    name: ClassVar[str] = "fashion-mnist"
    about: ClassVar[str] = "70,000 images of clothing, 28x28, ten classes"
    home: ClassVar[tuple[Remote, ...]] = (
        Remote(
            f"{HOME}/{IDX_FILES[0]}",
            "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        Remote(
            f"{HOME}/{IDX_FILES[1]}",
            "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        Remote(
            f"{HOME}/{IDX_FILES[2]}",
            "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        Remote(
            f"{HOME}/{IDX_FILES[3]}",
            "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    )
    advice: ClassVar[str] = (
        "`concordfl data get fashion-mnist`, or on Debian `apt-get install dataset-fashion-mnist`"
    )

    def forms(self) -> Sequence[Form]:
        return (Form(IDX_FILES, images_from_idx),)
