"""The command line ``ninfer-rs``.

Exit codes: 0 fine, 1 problems were found (or a conversion was refused), 2 bad usage or an unreadable file.
"""

from __future__ import annotations

from typing import Any

import click

from .. import __version__
from .._files import printable
from ..errors import FileFormatError, NinferError, TensorNotFoundError
from . import bench, compare, convert, dequantize, formats, inspect, verify

__all__ = ["main"]


class _Group(click.Group):
    """Turns errors into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # whoever read the output has seen enough; click ends quietly
        except (FileFormatError, TensorNotFoundError, OSError) as error:
            _say(error)
            ctx.exit(2)
        except NinferError as error:
            _say(error)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)


def _say(error: Exception) -> None:
    click.echo("error: " + "\n".join(printable(line) for line in str(error).split("\n")), err=True)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ninfer-rs")
def main() -> None:
    """Exact handling of quantised model weights: GGUF, safetensors and .ninfer files.

    Exit codes: 0 fine, 1 problems found, 2 bad usage or unreadable file.
    """


main.add_command(inspect.command, "inspect")
main.add_command(verify.command, "verify")
main.add_command(convert.command, "convert")
main.add_command(dequantize.command, "dequantize")
main.add_command(compare.command, "compare")
main.add_command(formats.command, "formats")
main.add_command(bench.command, "bench")
