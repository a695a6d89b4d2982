"""Constants of an existing chip from what people measured on it.

`bench_files` reads the files of benchmark tools as measurement rows, `fit_chip` fits the levels of
the chip on one part of them and scores the other, `chip_yaml` writes the hardware file.
"""
