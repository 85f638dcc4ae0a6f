"""Reading and writing on disk: atomic files and folders, manifests, locks, resumable work.

Every file or folder that padir writes is either complete under its final name or absent. While it is being written, it
has the name `.NAME.DIGITS.partial` in the same parent folder.
"""
