from typing import Any, Self

class Client:
    @classmethod
    def get_qualified_class_name(cls) -> str: ...

class SimpleClient(Client): ...

class MessagingConfig:
    @classmethod
    def model_validate(cls, obj: Any) -> Self: ...
    def model_dump(self, *, mode: str = ...) -> dict[str, Any]: ...

class MessagingInterface:
    backend: Any
