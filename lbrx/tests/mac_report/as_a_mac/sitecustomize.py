"""Python imports this first where the folder is on its path: the process takes itself for a Mac.

lbrx then imports Metal, MetalPerformanceShaders, Foundation and objc, and finds softmetal in
PyObjC's place.
"""

import mmap
import subprocess  # these look at sys.platform when they are imported, and must see Linux
import sys
import sysconfig
import tempfile

import numpy

import softmetal

sysconfig.get_config_vars()
softmetal.install(force=True)
sys.platform = "darwin"
mmap.PAGESIZE = 16 << 10
_ = subprocess, tempfile, numpy
