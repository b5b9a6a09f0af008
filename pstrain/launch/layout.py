"""The jobs of a launched cluster, and the command and environment of each task. Pure.

Knows no engine: callers pass the addresses. One program runs as chief, worker and ps, and learns
its role from TF_CONFIG. A dispatcher and data workers run beside it; the program finds them through
DATASERVICE_DISPATCHER. Invariant: every task gets the same addresses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pstrain.errors import InvalidArgumentError
from pstrain.security import (
    INSECURE_NETWORK_ENV,
    TLS_CA_ENV,
    TLS_CERT_ENV,
    TLS_KEY_ENV,
    check_one_way,
)

DISPATCHER_ENV: Final = "DATASERVICE_DISPATCHER"
_SERVICE_TLS_CA_ENV: Final = "DATASERVICE_TLS_CA"
PROGRAM_JOBS: Final = ("chief", "worker", "ps")

Addresses = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """How other hosts may reach the tasks: by TLS, unencrypted, or (the default) not at all."""

    insecure_network: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None

    def __post_init__(self) -> None:
        check_one_way(self.insecure_network, self._paths)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgumentError(
                "TLS needs a certificate and its key: give both --tls-cert and --tls-key"
            )

    def require(self, engine: str) -> None:
        """Raises InvalidArgumentError unless tasks may listen where other hosts reach them."""
        if self.tls_cert is None and not self.insecure_network:
            raise InvalidArgumentError(
                f"tasks on {engine} listen where other hosts can reach them: give --tls-cert and "
                "--tls-key (and --tls-ca), or accept unencrypted traffic with --insecure-network"
            )

    def options(self) -> list[str]:
        """Returns these settings as options of the `dataservice` command."""
        listed = [part for name, path in self._paths.items() if path for part in (name, path)]
        return [*listed, *(["--insecure-network"] if self.insecure_network else [])]

    @property
    def _paths(self) -> dict[str, str | None]:
        return {"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--tls-ca": self.tls_ca}

    def environment(self) -> dict[str, str]:
        """Returns these settings as variables for the program's `ps.Server` and its clients."""
        given = {
            TLS_CERT_ENV: self.tls_cert,
            TLS_KEY_ENV: self.tls_key,
            TLS_CA_ENV: self.tls_ca,
            _SERVICE_TLS_CA_ENV: self.tls_ca,
            INSECURE_NETWORK_ENV: "1" if self.insecure_network else None,
        }
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A ``program``, and the number of tasks of each job of its cluster.

    A program that ends in ``.py`` runs under Python; any other is a command.
    """

    program: tuple[str, ...]
    workers: int = 2
    ps: int = 2
    data_workers: int = 1
    exposure: Exposure = Exposure()

    def __post_init__(self) -> None:
        if not self.program:
            raise InvalidArgumentError("which program? give it last: -- program.py ARGS")
        for name, least in (("workers", 1), ("ps", 1), ("data_workers", 0)):
            if getattr(self, name) < least:
                option = "--" + name.replace("_", "-")
                raise InvalidArgumentError(
                    f"{option} must be at least {least}, got {getattr(self, name)}"
                )

    @property
    def jobs(self) -> dict[str, int]:
        """The number of tasks of each job, the chief's first."""
        service = {"dispatcher": 1, "data_worker": self.data_workers} if self.data_workers else {}
        return {"chief": 1, "ps": self.ps, "worker": self.workers, **service}

    def tasks(self) -> list[tuple[str, int]]:
        """Returns the job and index of every task."""
        return [(job, index) for job, count in self.jobs.items() for index in range(count)]

    def command(self, job: str, index: int, addresses: Addresses, python: str) -> list[str]:
        """Returns the task's command line; `python` is the interpreter on its machine."""
        if job in PROGRAM_JOBS:
            return [*([python] if self.program[0].endswith(".py") else []), *self.program]
        host, _, port = addresses[job][index].rpartition(":")
        role = "dispatcher" if job == "dispatcher" else "worker"
        listed = [python, "-m", "dataservice", role, "--host", host.strip("[]"), "--port", port]
        if job == "data_worker":
            listed += ["--dispatcher", addresses["dispatcher"][0]]
        return [*listed, *self.exposure.options()]

    def environment(self, job: str, index: int | str, addresses: Addresses) -> dict[str, str]:
        """Returns the task's variables; `index` may be a placeholder that an engine fills in."""
        if job not in PROGRAM_JOBS:
            return {}
        cluster = {name: list(addresses[name]) for name in PROGRAM_JOBS}
        config = {"cluster": cluster, "task": {"type": job, "index": index}}
        told = {"TF_CONFIG": json.dumps(config), **self.exposure.environment()}
        if self.data_workers:
            told[DISPATCHER_ENV] = f"grpc://{addresses['dispatcher'][0]}"
        return told

    def to_json(self) -> str:
        """Returns the layout as JSON, for a task that resolves its role where it runs."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Layout:
        values: dict[str, Any] = json.loads(text)
        exposure = Exposure(**values.pop("exposure"))
        return cls(program=tuple(values.pop("program")), exposure=exposure, **values)
