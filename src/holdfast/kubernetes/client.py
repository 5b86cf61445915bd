"""The connection to the Kubernetes API: who we are comes from the service account, else from a kubeconfig.

What goes wrong is one error, whose sentence says what to do.
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
    """Where the API is and who we are there; ``setting`` is what made us look."""

    def __init__(self, setting: str, config: KubeConfig | None = None, *, namespace: str = "") -> None:
        with _telling(setting):
            found = (config or KubeConfig.from_env()).get()
            if found is None:
                raise KubeConfigError("the kubeconfig names no context")
            self._config = found
        self._setting = setting
        self.namespace = namespace or self._config.namespace

    def typed(self) -> AsyncClient:
        """Open a client that knows the types of Kubernetes."""
        with _telling(self._setting):
            return AsyncClient(self._config, timeout=httpx2.Timeout(_TIMEOUT_SECONDS))

    def plain(self) -> httpx2.AsyncClient:
        """Open a client that only knows where the API is and how to show who we are."""
        timeout = httpx2.Timeout(_TIMEOUT_SECONDS)
        with _telling(self._setting):
            return client_adapter.AsyncClient(self._config, client_adapter.ConnectionParams(timeout))

    @contextlib.contextmanager
    def asking(self, verb: str, what: str, needs: str) -> Generator[None]:
        """Turn what goes wrong meanwhile into KubernetesUnavailable; ``needs`` is the rule of the Role."""
        try:
            yield
        except httpx2.HTTPStatusError as exc:
            raise self._refusal(verb, what, needs, exc) from exc
        except (httpx2.HTTPError, TimeoutError) as exc:
            said = f"{self._name} does not answer: {str(exc) or type(exc).__name__}."
            raise KubernetesUnavailable(said, kind="away") from exc
        except KubeConfigError as exc:  # of a token that is not there any more
            raise KubernetesUnavailable(f"{self._name}: {exc}.", kind="unauthorized") from exc
        except (ValueError, KeyError, msgspec.MsgspecError) as exc:
            # KeyError too: the client takes for granted that every error says what type its text has.
            said = f"{self._name} answers what no Kubernetes API does: {exc!r}."
            raise KubernetesUnavailable(said, kind="odd") from exc

    @property
    def _name(self) -> str:
        return f"the Kubernetes API at {self._config.cluster.server}"

    def _refusal(
        self, verb: str, what: str, needs: str, exc: httpx2.HTTPStatusError
    ) -> KubernetesUnavailable:
        code, said = exc.response.status_code, _said(exc.response)
        if code == _FORBIDDEN:
            return KubernetesUnavailable(
                f"{self._name} does not let us {verb} {what} ({said}): give the service account a Role with "
                f"{needs}.",
                kind="forbidden",
            )
        if code == _UNAUTHORIZED:
            return KubernetesUnavailable(
                f"{self._name} does not know us ({said}): look whether the token of the service account is "
                "mounted (automountServiceAccountToken), or what the kubeconfig says.",
                kind="unauthorized",
            )
        return KubernetesUnavailable(
            f"{self._name} does not {verb} {what}: {said} ({code}).", kind="refused", status=code
        )


class _Status(msgspec.Struct):
    """What the API says of an error."""

    message: str = ""


def _said(response: httpx2.Response) -> str:
    try:
        said = msgspec.json.decode(response.content, type=_Status).message
    except msgspec.MsgspecError:
        said = ""  # a proxy's words, not the API's
    return said or response.reason_phrase


@contextlib.contextmanager
def _telling(setting: str) -> Generator[None]:
    try:
        yield
    except KeyError as exc:
        raise ConfigError(f"{setting}: the environment has no {exc.args[0]}.") from exc
    except (KubeConfigError, OSError, ssl.SSLError) as exc:
        raise ConfigError(
            f"{setting}: neither a service account nor a kubeconfig can be used: {exc}."
        ) from exc
