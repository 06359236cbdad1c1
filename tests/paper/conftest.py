"""Commands of `python -m paper`, called within this process."""

from __future__ import annotations

import pytest

from paper.commands import main


@pytest.fixture
def call(capsys):
    """Calls `python -m paper` with these arguments; gives exit code and stderr on one line."""

    def call(*arguments: object) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        code = end.value.code
        words = " ".join("".join(capsys.readouterr()).replace("│", " ").split())
        return (code if isinstance(code, int) else 0), words

    return call
