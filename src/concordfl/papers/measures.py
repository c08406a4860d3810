"""What is looked at in finished runs beyond their figures, by name.

A measure gives numbers by name, or `panels`: pictures as `report.pictures` draws them.
"""

from collections.abc import Callable
from typing import Any

from ..deploy.finished import FinishedRun
from ..study.encoders import encoder_tables
from . import measures_fedconcat, measures_fedconceptem, measures_fedgmm, measures_fedvc
from .label_shares import label_shares

Measure = Callable[[FinishedRun], dict[str, Any]]

MEASURES: dict[str, Measure] = {
    "averaging": measures_fedconcat.averaging,
    "data-set": measures_fedconcat.data_set,
    "encoder-losses": lambda finished: dict(encoder_tables(finished)),
    "label-shares": label_shares,
    "local-representations": measures_fedconcat.local_representations,
    "representation": measures_fedconcat.representation,
    "concepts-by-model": measures_fedconceptem.concepts_by_model,
    "labels-by-model": measures_fedconceptem.labels_by_model,
    "model-shares": measures_fedconceptem.model_shares,
    "toy-concept-em": measures_fedconceptem.toy_concept_em,
    "toy-em": measures_fedconceptem.toy_em,
    "accuracy-by-steps": measures_fedgmm.accuracy_by_steps,
    "altered-images": measures_fedgmm.altered_images,
    "altered-labels": measures_fedgmm.altered_labels,
    "altered-labels-by-term": measures_fedgmm.altered_labels_by_term,
    "labels-along-a-line": measures_fedgmm.labels_along_a_line,
    "novel-images": measures_fedgmm.novel_images,
    "unseen-digit": measures_fedgmm.unseen_digit,
    "accuracy-by-group": measures_fedvc.accuracy_by_group,
    "class-shares": measures_fedvc.class_shares,
    "client-sizes": measures_fedvc.client_sizes,
    "preferences": measures_fedvc.preferences,
}
