"""The report on a run or a calibration: its content as data, and the page made from it."""
