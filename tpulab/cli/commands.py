"""The commands of `tpulab` as they are typed; each asks a room for the answer and prints it."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import __version__
from .status import NO, OK, UNFINISHED, WRONG_USE, Stop

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100},
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON for another program.")]


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Your laptop is a TPU lab: the course's command line.

    Exit status: 0 yes, 1 the answer is no, 2 wrong use, 3 could not finish, 130 interrupted.
    """
    if version:
        print(f"tpulab {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command("lab")
def lab_command(
    work: Annotated[str, typer.Option(metavar="DIR", help="Your own folder for the notebooks.")] = "~/tpulab",
    copy_only: Annotated[bool, typer.Option("--copy-only", help="Bring the notebooks; start nothing.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Take this port; without it, the first free one from 8888.", show_default=False
        ),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no window; print the address.")] = False,
) -> None:
    """Bring the notebooks to your folder and open them.

    Run it again after an update: new chapters come, what you have not changed is replaced, and a notebook in
    which you have changed a cell's text is never overwritten. Outputs do not count as changes.
    """
    from . import lab, server

    done = lab.hand_out(lab.course_notebooks(), lab.absolute(_not_empty("--work", work), "--work"))
    print("\n".join(done.lines()), flush=True)
    if copy_only:
        return
    names = sorted(done.new + done.updated + done.same + done.kept)
    raise typer.Exit(server.serve(done.folder, first=names[0], port=port, browser=not no_browser, say=_say_now))


def _not_empty(option: str, text: str) -> str:
    """Refuse an option's empty text, which a script gives when its variable is not set."""
    if not text.strip():
        raise Stop(f"{option} is empty; say what it is to be, or leave {option} away", WRONG_USE)
    return text


def _say_now(line: str) -> None:
    print(line, flush=True)


@app.command("doctor")
def doctor_command(as_json: Json = False) -> None:
    """Say if this machine is ready, and what to do if not."""
    from rich.console import Console

    from . import doctor, server

    busy = Console(stderr=True).status("Starting a kernel, JupyterLab and a notebook's first cell …")
    with server.signals_interrupt(), busy:
        report = doctor.examine()
    if as_json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        words = {True: "ok", False: "NOT OK", None: "-"}
        rows = [(check.name, words[check.ok], check.found, check.remedy) for check in report.checks]
        _table(("check", "", "found", "remedy"), rows)
        print(f"\nFor an instructor (holds no names and no paths): {report.code}\n\n{report.verdict}")
    raise typer.Exit(OK if report.ready else NO)


@app.command("progress")
def progress_command(
    only_code: Annotated[bool, typer.Option("--code", help="Print only the code that restores progress.")] = False,
    restore: Annotated[str | None, typer.Option(metavar="CODE", help="Take in progress from a code.")] = None,
    class_list: Annotated[
        str | None, typer.Option("--class", metavar="FILE", help="A file of lines NAME CODE, or - for standard input.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Exercises of every chapter.")] = False,
    as_json: Json = False,
) -> None:
    """Show how far you are and what is next."""
    if class_list is not None:
        if only_code or restore is not None or everything:
            raise Stop("--class stands alone, or with --json", WRONG_USE)
        raise typer.Exit(_show_class(_not_empty("--class", class_list), as_json))
    from ..learn import outline, report, store

    try:
        if restore is not None:
            report.progress(restore=_not_empty("--restore", restore))
            print("Taken in; what was further here stays.", file=sys.stderr)
        record, note = store.read()
    except ValueError as error:
        raise Stop(f"--restore: {error}", WRONG_USE) from None
    except OSError as error:
        where = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        remedy = "" if "TPULAB_HOME" in where else "; set TPULAB_HOME to a folder of yours"
        raise Stop(where + remedy) from None
    if note:
        print(f"tpulab: {note}", file=sys.stderr)
    progress = report.summarize(record)
    if only_code:
        print(progress.code)
    elif as_json:
        chapters = [asdict(one) for one in outline.outline(record)]
        print(json.dumps({"next": progress.next_step, "code": progress.code, "chapters": chapters}, indent=1))
    else:
        _table(outline.HEAD, outline.rows(outline.outline(record), everything=everything))
        print(f"\nNext: {progress.next_step.replace('`', '')}")


def _show_class(name: str, as_json: bool) -> int:
    from ..learn import classroom

    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise Stop(f"{name}: {error.strerror or error}", WRONG_USE) from None
    found = classroom.read_class(raw.decode("utf-8-sig", errors="replace").splitlines())
    if as_json:
        print(json.dumps(asdict(found), indent=1))
    elif found.seats:
        _table(found.HEAD, found.rows())
    for problem in found.problems:
        print(f"tpulab: {name}: {problem}", file=sys.stderr)
    if not found.seats and not found.problems:
        raise Stop(f"{name}: no lines of NAME CODE in it", NO)
    return NO if found.problems else OK


@app.command("inspect")
def inspect_command(
    what: Annotated[
        str,
        typer.Argument(metavar="MODULE:FUNCTION", help="Or FILE.py:FUNCTION, or a file with HLO (.hlo, .pb, .txt)."),
    ],
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHAPE",
            help="One for each array, in order: 2048x1024:bf16, 4096 (f32), :f32 (a scalar), x=8x128 (by name), "
            "\"{'w': '4x2', 'b': '2'}\" (a tree).",
        ),
    ] = None,
    static: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An argument that is no array; may be repeated.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="Chips to compile for, e.g. v5e:2x2, v5p:4x4x8; v5e is one chip; cpu is this machine. [default: v5e]",
            show_default=False,
        ),
    ] = None,
    mesh: Annotated[
        list[str] | None, typer.Option(metavar="AXIS=SIZE", help="Spread over devices, e.g. data=2,model=2.")
    ] = None,
    spec: Annotated[
        list[str] | None,
        typer.Option(metavar="AXES", help="For each --shape in order: the mesh axis of each dimension, e.g. data,-."),
    ] = None,
    fusion: Annotated[str, typer.Option(metavar="on|off", help="off: compile without fusing, to compare.")] = "on",
    peak: Annotated[str, typer.Option(metavar="TYPE", help="Peak that the verdict takes: bf16, int8 or fp8.")] = "bf16",
    svg: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the picture there.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what the compiler makes of your function: its kernels, trips to HBM, and what binds it.

    No TPU is needed. The function is traced and compiled, never run: arrays have shapes and no values. Example:

    tpulab inspect model.py:layer --shape 2048x1024:bf16 --shape 1024x4096:bf16 --shape 4096:bf16 --target v5e
    """
    from . import inspector

    if fusion not in ("on", "off"):
        raise Stop(f"--fusion is on or off; got {fusion!r}", WRONG_USE)
    picture = Path(_not_empty("--svg", svg)).expanduser() if svg is not None else None
    if picture and not picture.absolute().parent.is_dir():
        raise Stop(f"--svg {svg}: there is no folder {picture.absolute().parent}", WRONG_USE)
    question = inspector.Question(
        _not_empty("MODULE:FUNCTION", what),
        shape or (),
        static or (),
        target,
        mesh or (),
        spec or (),
        fusion == "on",
        peak,
    )
    _inspect(question, picture, as_json)


def _inspect(question: Any, picture: Path | None, as_json: bool) -> None:
    from rich.console import Console

    from ..xla.errors import DoesNotFit
    from . import inspector

    try:
        with Console(stderr=True).status(f"Compiling {question.what} …"):
            program = inspector.program(question)
            model = inspector.verdict(program, question)
    except DoesNotFit as error:
        print(json.dumps(inspector.too_large(error), indent=1) if as_json else error.table())
        raise inspector.refusal(error) from None
    if picture:
        inspector.save_picture(program, picture)
    print(json.dumps(inspector.as_dict(program, model), indent=1) if as_json else inspector.lines(program, model))
    if picture:
        print(f"picture: {picture}", file=sys.stderr)


@app.command("record")
def record_command(
    chapters: Annotated[list[str] | None, typer.Argument(help="E.g. 03_jit or 03; all by default.")] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where the measurements go.")] = "measured",
) -> None:
    """On a TPU: run the notebooks and store what they measure there."""
    from .. import record
    from . import lab, recorder

    folder = lab.absolute(_not_empty("--out", out), "--out")
    recorder.require_tpu()
    chosen = recorder.choose(lab.course_notebooks(), chapters or [])
    results = _record_all(chosen, folder)
    files = [path for result in results for path in result.files]
    for result in results:
        if result.problem:
            print(f"tpulab: {result.slug} did not run to its end: {result.problem}", file=sys.stderr)
    if files:
        print(f"{len(files)} written: {', '.join(map(str, files))}")
        print(f"Copy them into {record.STORED} of a clone and build: the chapters then show them.")
    if any(result.problem for result in results):
        raise typer.Exit(UNFINISHED)
    if not files:
        raise Stop("the notebooks ran, and none of them measured anything", NO)


def _record_all(chosen: list[Path], out: Path) -> list[Any]:
    from rich.console import Console
    from rich.progress import Progress

    from . import recorder

    results = []
    try:
        with Progress(console=Console(stderr=True), transient=True) as bar:
            for path in chosen:
                task = bar.add_task(path.stem)
                ran = lambda done, cells, task=task: bar.update(task, completed=done, total=cells)  # noqa: E731
                results.append(recorder.record_one(path, out, ran))
    except OSError as error:
        raise Stop(f"{out}: {error.strerror or error}; choose another folder with --out DIR") from None
    return results


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table without boxes; columns are told apart by space alone."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*head, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width: break no line
        wide = Console(width=10_000)
        console = Console(width=max(20, wide.measure(table).maximum))
    console.print(table)
