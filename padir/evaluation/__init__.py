"""How good translations are: metrics, one model on a test set, tables of many systems, tests of their differences."""
