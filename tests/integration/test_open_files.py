"""The limit of open files, tested in child processes, as it holds for a whole process."""

from __future__ import annotations

import sys

import pytest

from tests.programs import said_by

resource = pytest.importorskip("resource")

PROGRAM = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
from dataservice.runtime.open_files import allow_most_files
print(allow_most_files(), allow_most_files(), *resource.getrlimit(resource.RLIMIT_NOFILE), hard)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others have a limit beyond the hard one")
def test_limit_is_raised_to_what_the_system_grants() -> None:
    told, again, soft, hard, granted = map(int, said_by(PROGRAM).split())
    assert told == again == soft == min(65_536, granted)
    assert soft >= 64
    assert hard == granted


NEEDY = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))
from dataservice.errors import ResourceExhaustedError
from dataservice.runtime.open_files import allow_files
allow_files(64, "a small program")
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
allow_files(65, "a larger program")
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
try:
    allow_files(1_512, "a coordinator of 1,000 trainers")
except ResourceExhaustedError as error:
    print(error)
"""


def test_program_keeps_its_limit_unless_it_needs_more() -> None:
    kept, raised, refusal = said_by(NEEDY).splitlines()
    assert (kept, raised) == ("64", "512")
    assert refusal.startswith("a coordinator of 1,000 trainers takes about 1,512 open files")
    assert "allows a process 512: raise its hard limit" in refusal
