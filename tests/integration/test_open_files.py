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
from dataservice.runtime.machine.open_files import allow_most_files
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
resource.setrlimit(resource.RLIMIT_NOFILE, (600, 1100))
from dataservice.errors import ResourceExhaustedError
from dataservice.runtime.machine.open_files import allow_files

def limit_for(count):
    allow_files(count, f"a coordinator of {count:,} trainers")
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

print(limit_for(88), limit_for(89), limit_for(1_000))
try:
    limit_for(1_037)
except ResourceExhaustedError as error:
    print(error)
"""

MACOS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
really = resource.setrlimit
def grant_some(kind, limits):
    if limits[0] > 10_240:
        raise ValueError("current limit exceeds maximum limit")
    really(kind, limits)
resource.setrlimit = grant_some
from dataservice.runtime.machine.open_files import allow_files
allow_files(10, "a coordinator of 10 trainers")
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_program_keeps_its_limit_unless_it_needs_more() -> None:
    limits, refusal = said_by(NEEDY).splitlines()
    assert limits == "600 601 1100"
    assert refusal.startswith("a coordinator of 1,037 trainers takes 1,037 open files besides")
    assert "allows a process 1,100: raise its hard limit" in refusal


def test_few_files_are_had_where_many_are_refused() -> None:
    assert said_by(MACOS).strip() == "522"


SERVER = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
from pstrain.server import Server
with Server({"ps": ["127.0.0.1:0"]}):
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others have a limit beyond the hard one")
def test_server_that_a_program_starts_may_have_many_clients() -> None:
    soft, hard = map(int, said_by(SERVER).split())
    assert soft == min(65_536, hard)
