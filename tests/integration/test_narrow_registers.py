"""Kernels choose other sums where registers are narrow: the same tests pass there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.codegen import get_host_cpu_features

from pstrain.kernels.vectors import WIDE_REGISTERS

TESTS = "tests/unit/pstrain/kernels/test_projection.py"
REPOSITORY = Path(__file__).parents[2]


@pytest.mark.skipif(not WIDE_REGISTERS, reason="this processor has narrow registers anyway")
def test_projections_are_right_without_wide_registers(tmp_path: Path) -> None:
    narrow = {
        "NUMBA_CPU_FEATURES": get_host_cpu_features().replace("+avx512", "-avx512"),
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    check = "from pstrain.kernels.vectors import WIDE_REGISTERS; assert not WIDE_REGISTERS; "
    run = f"import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '{TESTS}']))"
    done = subprocess.run(
        [sys.executable, "-c", check + run],
        env={**os.environ, **narrow},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
