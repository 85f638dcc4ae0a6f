"""Jobs on whole models and corpora: averaging checkpoints, distilling a teacher, learning a shortlist.

Each job reads prepared folders and model directories and writes new ones. A killed distillation resumes when the same
command is run again.
"""

from padir.jobs.average import average_run
from padir.jobs.distillation import Teacher, distill
from padir.jobs.learn_shortlist import learn

__all__ = ["Teacher", "average_run", "distill", "learn"]
