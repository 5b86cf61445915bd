"""The settings of ``scaler``: the process that reports to KEDA over gRPC how many workers there should be."""

from __future__ import annotations

from typing import Annotated, ClassVar

from holdfast.config.durations import DAY
from holdfast.config.section import Section, about


class ScalerSettings(Section, frozen=True, kw_only=True):
    """The external scaler of KEDA."""

    section: ClassVar[str] = "scaler"

    host: Annotated[
        str,
        about(
            "Address that the scaler's gRPC server listens on; in a pod 0.0.0.0.",
            pattern=r"\A[!-~]+\Z",
            allowed="an address or a host name",
        ),
    ] = "127.0.0.1"
    port: Annotated[int, about("Port of the scaler's gRPC server; 0 is a free one.", ge=0, le=65535)] = 9800
    answer_seconds: Annotated[
        float,
        about(
            "How long Redis may take before the answer is UNAVAILABLE; KEDA itself waits 3 s.",
            ge=0.01,
            le=60,
        ),
    ] = 2.0
    poll_seconds: Annotated[
        float,
        about(
            "How often queues are read besides wake-ups: a delayed run becomes due without one.",
            ge=0.01,
            le=DAY,
        ),
    ] = 1.0
    tls_certificate: Annotated[str, about("File with the scaler's certificate; empty disables TLS.")] = ""
    tls_key: Annotated[str, about("File with its key.")] = ""
    tls_ca: Annotated[
        str, about("File with the authority of the callers' certificates; empty requires none.")
    ] = ""
