"""The connection to the Kubernetes API, with the credentials of the service account, else of a kubeconfig.

Every failure is one error, whose message names the remedy.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Final

import httpx2
import msgspec
from lightkube import AsyncClient, KubeConfig
from lightkube.config import client_adapter
from lightkube.core.exceptions import ConfigError as KubeConfigError

from holdfast.errors import ConfigError, KubernetesUnavailable

if TYPE_CHECKING:
    from collections.abc import Generator

_TIMEOUT_SECONDS: Final = 5.0
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403


class Api:
    """The address of the API and the credentials; ``setting`` is the setting that needs them."""

    def __init__(self, setting: str, config: KubeConfig | None = None, *, namespace: str = "") -> None:
        with _translate_config_errors(setting):
            found = (config or KubeConfig.from_env()).get()
            if found is None:
                raise KubeConfigError("the kubeconfig names no context")
            self._config = found
        self._setting = setting
        self.namespace = namespace or self._config.namespace

    def typed(self) -> AsyncClient:
        """Open a client with the types of Kubernetes."""
        with _translate_config_errors(self._setting):
            return AsyncClient(self._config, timeout=httpx2.Timeout(_TIMEOUT_SECONDS))

    def plain(self) -> httpx2.AsyncClient:
        """Open a plain HTTP client with the address and the credentials."""
        timeout = httpx2.Timeout(_TIMEOUT_SECONDS)
        with _translate_config_errors(self._setting):
            return client_adapter.AsyncClient(self._config, client_adapter.ConnectionParams(timeout))

    @contextlib.contextmanager
    def asking(self, verb: str, what: str, needs: str) -> Generator[None]:
        """Translate errors of a request to KubernetesUnavailable; ``needs`` is the rule of the Role."""
        try:
            yield
        except httpx2.HTTPStatusError as exc:
            raise self._refusal(verb, what, needs, exc) from exc
        except (httpx2.HTTPError, TimeoutError) as exc:
            message = f"{self._name} does not respond: {str(exc) or type(exc).__name__}."
            raise KubernetesUnavailable(message, kind="away") from exc
        except KubeConfigError as exc:  # the file of the token is missing
            raise KubernetesUnavailable(f"{self._name}: {exc}.", kind="unauthorized") from exc
        except (ValueError, KeyError, msgspec.MsgspecError) as exc:
            # KeyError too: the client requires that every error has a content type.
            message = f"{self._name} sent no valid Kubernetes response: {exc!r}."
            raise KubernetesUnavailable(message, kind="odd") from exc

    @property
    def _name(self) -> str:
        return f"the Kubernetes API at {self._config.cluster.server}"

    def _refusal(
        self, verb: str, what: str, needs: str, exc: httpx2.HTTPStatusError
    ) -> KubernetesUnavailable:
        code, reason = exc.response.status_code, _message(exc.response)
        if code == _FORBIDDEN:
            return KubernetesUnavailable(
                f"{self._name} forbids to {verb} {what} ({reason}): give the service account a Role with "
                f"{needs}.",
                kind="forbidden",
            )
        if code == _UNAUTHORIZED:
            return KubernetesUnavailable(
                f"{self._name} rejects the credentials ({reason}): check that the token of the service "
                "account is mounted (automountServiceAccountToken), or check the kubeconfig.",
                kind="unauthorized",
            )
        return KubernetesUnavailable(
            f"{self._name} refuses to {verb} {what}: {reason} ({code}).", kind="refused", status=code
        )


class _Status(msgspec.Struct):
    """The body of an error of the API."""

    message: str = ""


def _message(response: httpx2.Response) -> str:
    try:
        message = msgspec.json.decode(response.content, type=_Status).message
    except msgspec.MsgspecError:
        message = ""  # the response of a proxy, not of the API
    return message or response.reason_phrase


@contextlib.contextmanager
def _translate_config_errors(setting: str) -> Generator[None]:
    try:
        yield
    except KeyError as exc:
        raise ConfigError(f"{setting}: the environment has no {exc.args[0]}.") from exc
    except (KubeConfigError, OSError, ssl.SSLError) as exc:
        raise ConfigError(
            f"{setting}: neither a service account nor a kubeconfig can be used: {exc}."
        ) from exc
