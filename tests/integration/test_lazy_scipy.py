"""SciPy is imported by functions that use linear algebra, not by every process that has kernels."""

from __future__ import annotations

from tests.programs import run_program, said_by

KERNELS = "from pstrain.kernels import losses\nlosses.warm_up()\n"
CHECKSUM = "from dataservice.runtime.checksum import checksum\nchecksum(b'eight by')\n"
RECORDS = (
    "from dataservice.dataset.sources import tfrecord_kernels\n"
    "import numpy as np\n"
    "tfrecord_kernels.little_endian(np.zeros(8, np.uint8), 0, 8)\n"
)
TELL = "import sys\nprint('scipy.linalg' in sys.modules)\n"
PRODUCT = (
    "import numpy as np\nfrom numba import njit\n"
    "@njit\ndef product(a, b):\n    return np.dot(a, b)\n"
    "a = np.arange(4.0).reshape(2, 2)\n"
    "assert (product(a, a) == a @ a).all()\n"
)
ABSENT = "import sys\nsys.modules['scipy'] = None\n"


def test_matrix_product_imports_scipy_and_kernels_of_the_packages_do_not() -> None:
    program = TELL.join([KERNELS, CHECKSUM, RECORDS, PRODUCT, ""])
    assert said_by(program).split() == ["False", "False", "False", "True"]


def test_matrix_product_without_scipy_names_it_as_required() -> None:
    program = ABSENT + KERNELS + PRODUCT
    assert "scipy 0.16+ is required" in run_program(program).stderr
