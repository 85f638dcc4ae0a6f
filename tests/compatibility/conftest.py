"""Files that an older padir wrote; the loader among them is no test module."""

collect_ignore = ["files"]
