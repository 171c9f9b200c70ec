"""Programs of one's own as commands: the parameters of a function become options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import asdict, make_dataclass
from typing import Any, NoReturn, get_type_hints

from eggroll import cli


def script(main: Callable[..., object]) -> NoReturn:
    """Runs a function with the options of the command line, and ends the program as commands end.

    `--steps 40` calls `main(steps=40)`. Every parameter has a default, and is annotated as int,
    float, str or bool. `--help` lists them below the first paragraph of the function's docstring,
    or of its module's. What is wrong, an InputError in `main` included, is one sentence and exit
    code 2; Ctrl-C ends with 130.
    """

    def work() -> int:
        main(**asdict(cli.parse(options_of(main), sys.argv[1:], command=sys.argv[0], about=about)))
        return cli.DONE

    text = inspect.getdoc(main) or inspect.getdoc(inspect.getmodule(main)) or ""
    about = " ".join(text.split("\n\n")[0].split())
    sys.exit(cli.run(work))


def options_of(main: Callable[..., object]) -> type[Any]:
    """A dataclass that has the function's parameters as fields.

    Raises:
        TypeError: a parameter has no annotation or no default.
    """
    hints, given = get_type_hints(main), inspect.signature(main).parameters
    for name, parameter in given.items():
        if name not in hints or parameter.default is parameter.empty:
            raise TypeError(f"parameter {name!r} of {main.__name__} needs a type and a default")
    return make_dataclass("Options", [(n, hints[n], p.default) for n, p in given.items()])
