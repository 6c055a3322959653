"""What the chart makes of values, good and bad, that an upgrade from its former version can be done, and what is in the image.
Without a cluster.

    chart_test.py PROGRAM [CLASS...]    PROGRAM is the `innkeeper` that reads what the chart writes
"""

import os
import sys
import unittest

os.environ["INNKEEPER_PROGRAM"] = sys.argv.pop(1)

from chart_around import Around
from chart_bad import Bad
from chart_engine import Engine
from chart_image import Image
from chart_pods import Pods
from chart_whole import Whole

__all__ = ["Around", "Bad", "Engine", "Image", "Pods", "Whole"]

if __name__ == "__main__":
    unittest.main()
