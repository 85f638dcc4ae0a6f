"""Write a shortlist for the benchmark's vocabulary of numbers: 4,096 of 32,100 ids, the same for every batch.

python scripts/numbers_shortlist.py runs/numbers.shortlist.npz
"""

import sys

import numpy as np

from padir.decoding.shortlist import Shortlist
from padir.text.ids import Ids

ids = Ids(32_100)
regular = np.random.RandomState(0).permutation(np.arange(ids.first_regular, ids.end_regular)).astype(np.int32)
none = np.zeros((ids.end_regular, 1), np.int32)
Shortlist("", none, regular, frequent=3_700).save(sys.argv[1])  # 3,700 and the special ids fill up to 4,096
