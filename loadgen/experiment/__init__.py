"""An experiment from its set-up to its answer: prepare, execute, search, rehearse, forecast, replay."""
