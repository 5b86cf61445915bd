"""Rustic AI's own test of an execution engine, on ours."""

from __future__ import annotations

import pytest
from rustic_ai.core.messaging import MessagingConfig
from rustic_ai.testing.execution.base_test_integration import IntegrationTestABC


class TestK8sExecutionEngine(IntegrationTestABC):
    @pytest.fixture
    def messaging(self, messaging: MessagingConfig) -> MessagingConfig:
        return messaging

    @pytest.fixture
    def execution_engine(self) -> str:
        return "holdfast.compat.rustic.K8sExecutionEngine"
