"""padir's gin files: the package padir.configs, so that T5X finds them by --gin_file=padir/configs/t5x/train.gin."""
