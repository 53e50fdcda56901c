"""One coordinator, three engines: a plan of batches becomes optimiser steps. Only `stages` and the real engines know torch."""
