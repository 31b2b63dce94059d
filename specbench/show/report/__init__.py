"""The report on a run, a calibration or a design: its content as data, and the page made from it."""
