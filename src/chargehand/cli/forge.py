"""`chargehand forge`: accounts at GitHub, GitLab, Gitea and Forgejo, and their issues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import CommandGroup, json_option

if TYPE_CHECKING:
    from chargehand.app.forge_accounts import AccountDocument, HookList
    from chargehand.cli.terminal.output import Output


@click.group(cls=CommandGroup)
def forge() -> None:
    """Work on issues of GitHub, GitLab, Gitea and Forgejo, and open requests to merge the results."""


@forge.command()
@click.argument("name")
@click.option("--kind", metavar="KIND", help="github (default), gitlab, gitea (also Forgejo) or local.")
@click.option("--url", metavar="URL", help="The address of its pages (default: the public one of the kind).")
@click.option("--device", is_flag=True, help="Sign in with a code that you type at the forge, instead of a token.")
@click.option("--client-id", metavar="ID", help="With --device: the id of your OAuth application or GitHub App.")
@click.option("--app", metavar="ID", help="Sign in as a GitHub App, by its id or client id.")
@click.option("--key", metavar="FILE", help="With --app: the App's private key.")
@click.option("--installation", type=int, metavar="ID", help="With --app: default: that of the repository.")
@json_option
def login(
    name: str,
    kind: str | None,
    url: str | None,
    device: bool,
    client_id: str | None,
    app: str | None,
    key: str | None,
    installation: int | None,
    out: Output,
) -> None:
    """Add an account as NAME, with a token that is asked for, or read from stdin in a pipe.

    The token is tried, then stored as `chargehand secret` does. No sandbox gets it.

    \b
    Example:
      chargehand forge login github
      chargehand forge login work --kind gitea --url https://git.example.org
      chargehand forge login lab --kind gitlab --device --client-id ID
      chargehand forge login github --app 12345 --key ~/keys/app.pem
    """
    from pathlib import Path

    from chargehand.app.forge_accounts import AppLogin, DeviceLogin, log_in
    from chargehand.cli.secret import read_hidden
    from chargehand.core.errors import UsageError
    from chargehand.forges.oauth import DeviceCode
    from chargehand.reports.reading import StateReader

    if device != (client_id is not None) or (app is None) != (key is None) or (device and app):
        raise UsageError("--device needs --client-id, --app needs --key, and only one of them can be given")
    if installation is not None and app is None:
        raise UsageError("--installation is that of an App", hint="give --app ID --key FILE too")

    def show(code: DeviceCode) -> None:
        # Without it no one can sign in, so it is shown with --json and in a pipe as well.
        click.echo(f"Open {code.page} and type {code.user_code}; Ctrl-C ends the waiting.", err=True)

    path = str(Path(key).expanduser().absolute()) if key else None
    with StateReader.open() as reader:
        made = log_in(
            reader,
            name,
            kind=kind,
            url=url,
            read=lambda: read_hidden(f"token for {name}").strip(),
            device=DeviceLogin(client_id, show) if client_id else None,
            app=AppLogin(app=app, app_key=path, installation=installation),
        )
    out.document(made)
    _show_account(out, made)
    out.text(f'Resolve an issue: chargehand run --issue "{made.url}/OWNER/NAME/issues/NUMBER"')


@forge.command()
@click.argument("name")
@json_option
def logout(name: str, out: Output) -> int:
    """Remove the webhooks, the stored token and the App of an account; its other settings stay.

    Exits 1 if something of them stays in use.
    """
    from chargehand.app.forge_accounts import log_out
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        made = log_out(reader, name)
    out.document(made)
    what = f"The token {made.token}" if made.token else "The App"
    out.text(f"{what} of {made.name} is removed here; revoke it at {made.url} as well.")
    if made.problem:
        out.text(f"  {made.problem}")
    return int(made.problem is not None)


@forge.group(cls=CommandGroup)
def hook() -> None:
    """Have forges post webhooks, so that changes are seen at once."""


@hook.command("add")
@click.argument("name")
@click.argument("url")
@json_option
def add_hook(name: str, url: str, out: Output) -> int:
    """Set up webhooks for the watched repositories of account NAME, to the server at URL.

    URL is where the forge reaches `chargehand up`. The secret that signs them is made and stored. The account must
    be an administrator of the repositories. May be repeated. Exits 1 if one could not be set up.

    \b
    Example:
      chargehand forge hook add github https://chargehand.example.org
    """
    from chargehand.app.forge_accounts import add_hooks
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        made = add_hooks(reader, name, url)
    return _show_hooks(out, made)


@hook.command("remove")
@click.argument("name")
@json_option
def remove_hook(name: str, out: Output) -> int:
    """Remove the webhooks that were set up for account NAME, and their secret."""
    from chargehand.app.forge_accounts import remove_hooks
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        made = remove_hooks(reader, name)
    out.document(made)
    failed = [each for each in made.hooks if each.problem]
    out.text(f"Webhooks removed: {len(made.hooks) - len(failed)}.")
    for each in failed:
        out.text(f"  that of {each.repository} stays: {each.problem}")
    return int(bool(failed))


@hook.command("list")
@json_option
def list_hooks(out: Output) -> None:
    """List the webhooks that were set up here."""
    from chargehand.app import forge_accounts
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        made = forge_accounts.list_hooks(reader)
    _show_hooks(out, made)


@forge.command("list")
@json_option
def list_(out: Output) -> None:
    """List the accounts, and the issues that are worked on."""
    from chargehand.app.forge_accounts import list_forges
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        listed = list_forges(reader)
    out.document(listed)
    if not listed.accounts:
        out.text("No account is configured. Add one: chargehand forge login github")
    rows = [
        (each.name, each.kind, each.url, _token_text(each), ", ".join(each.repositories))
        for each in listed.accounts
    ]
    if rows:
        out.table(("NAME", "KIND", "ADDRESS", "TOKEN", "WATCHES"), rows)
    for each in listed.issues:
        request = f", request {each.request}" if each.request else ""
        out.text(f"{each.account}:{each.repository}#{each.number}: mission {each.mission}{request}")


@forge.command("test")
@click.argument("name")
@json_option
def test_(name: str, out: Output) -> int:
    """Ask a forge who the token belongs to, and whether it may write to the watched repositories.

    Exits 1 if something is missing.
    """
    from chargehand.app.forge_accounts import test_forge
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        made = test_forge(reader, name)
    out.document(made)
    _show_account(out, made)
    return int(made.problem is not None or bool(made.lacks))


@forge.command()
@click.option("--once", is_flag=True, help="Look once, and exit.")
@json_option
def watch(once: bool, out: Output) -> None:
    """Take the issues that fit the rules of [forges], and follow the taken ones, until a signal.

    `chargehand up` does this too. An issue is taken if it has the label, the assignee and an author that its
    account's settings ask for.

    \b
    Example:
      chargehand config set forges.github.repositories '["me/project"]'
      chargehand forge watch
    """
    import contextlib

    from chargehand.app.composition import App
    from chargehand.app.forges import ForgeWatch
    from chargehand.cli.terminal.interrupt import run_loop
    from chargehand.cli.terminal.logs import set_up_logs

    set_up_logs()
    with App.open() as app, contextlib.closing(ForgeWatch(app)) as watching:
        if once:
            taken = watching.step(hurry=True)
            out.document({"taken": taken})
            out.text(f"{taken} issue{'' if taken == 1 else 's'} taken.")
            return
        out.notice("Watching; Ctrl-C ends it, and workers go on with what was taken.")
        run_loop(watching.run)


def _token_text(account: AccountDocument) -> str:
    if account.app is not None:
        return f"App {account.app}"
    return "not needed" if account.token is None else "stored" if account.stored else "missing"


def _show_hooks(out: Output, made: HookList) -> int:
    out.document(made)
    rows = [(each.account, each.repository, each.address, each.problem or "") for each in made.hooks]
    if rows:
        out.table(("ACCOUNT", "REPOSITORY", "ADDRESS", "PROBLEM"), rows)
    else:
        out.text("No webhook is set up.")
    return int(any(each.problem for each in made.hooks))


def _show_account(out: Output, made: AccountDocument) -> None:
    out.text(f"{made.name}: {made.kind} at {made.url}" + (f", as {made.login}" if made.login else ""))
    if made.lacks:
        out.text(f"  the token lacks: {', '.join(made.lacks)}")
    if made.problem:
        out.text(f"  {made.problem}")
