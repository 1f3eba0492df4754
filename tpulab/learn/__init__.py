"""Exercises that check themselves, predictions, and progress that lasts."""

from .notebook import check as check
from .notebook import exercises as exercises
from .notebook import hint as hint
from .notebook import predict as predict
from .notebook import predictions as predictions
from .notebook import reveal as reveal
from .notebook import solution as solution
from .report import progress as progress
