"""`fedkin join`: a site takes part with its own data until the run is finished."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message

from fedkin.engines.flower.certificates import SiteFiles, read_public
from fedkin.engines.flower.keys import endings
from fedkin.engines.flower.link import MOST_PER_REQUEST
from fedkin.engines.flower.logs import debugger, warner
from fedkin.engines.flower.private import (
    ErrorCode,
    Node,
    ObjectPullError,
    ObjectPushError,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    RuntimeHttpClient,
    SubStatus,
    TaskIdentity,
    TaskType,
    context_from_proto,
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    pull_and_inflate_object_from_tree,
    push_message,
    push_task_output,
)
from fedkin.engines.flower.processes import Child, free_port, write_private
from fedkin.engines.flower.reach import (
    check_host,
    check_key,
    is_loopback,
    split_address,
    wait_for_server,
)
from fedkin.engines.flower.runtime import Endpoint, acquire, heartbeat
from fedkin.engines.flower.scripts.backoff import Backoff
from fedkin.errors import FedkinError
from fedkin.runs.folder import take_lock
from fedkin.runs.sites.client_app import reply
from fedkin.runs.sites.machine import Machine
from fedkin.runs.sites.site import SiteWorker

PIECES = (0.02, 0.5)  # seconds, shortest and longest, before a missing piece is requested again
LINGER = 3.0  # seconds for the last answer to be sent
AGAIN = 2.0  # seconds before a broken connection is tried again
FORGET_DAYS = 180  # after so many without a request a run's memory is removed; its model stays
KEY_TIME = 120.0  # seconds until Flower notices that an earlier process with this key is dead


@dataclass(frozen=True)
class JoinOptions:
    """How a site takes part. `keys` are its certificates; None: a plain connection.
    `patience` is how many seconds it waits for a server that it has never reached."""

    server: str
    site: SiteWorker | Machine
    keys: SiteFiles | None
    poll: float = 0.2
    stay: bool = False
    patience: float = inf
    log_level: str = "info"  # from which on lines of Flower's are kept


class End(Enum):
    """How a connection ended: the run is finished, it broke, or the server rejected it."""

    DONE = auto()
    BROKEN = auto()
    NOT_TAKEN = auto()


def keys_for(server: str, certs: Path | None, insecure: bool) -> SiteFiles | None:
    """The site's keys; without keys only a server on this machine is allowed."""
    if certs is not None:
        return SiteFiles.of(certs)
    if not is_loopback(split_address(server)[0]) and not insecure:
        raise FedkinError(
            f"{server} is reached over the network: give the folder with this site's key with "
            "--certs (or use --insecure where something else encrypts and authenticates)"
        )
    return None


def join(options: JoinOptions, say: Callable[[str], None]) -> None:
    """Connect, answer requests, and return when the run is finished."""
    authority = options.keys.authority if options.keys else None
    check_host(options.server)
    wait_for_server(options.server, authority, say, options.patience)
    if options.keys:
        check_key(options.server, options.keys.authority, read_public(options.keys.public))
    say(f"{options.site.title} is connecting to {options.server} (Ctrl-C: leave)")
    for sentence in endings(authority, authority.with_name("site.pem")) if authority else ():
        say(f"note: {sentence}")
    with take_lock(options.site.home):
        for experiment in options.site.forget_older(FORGET_DAYS):
            say(f"forgot what was remembered for '{experiment}': no request for {FORGET_DAYS} days")
        told, refused_at, patience = False, inf, options.patience
        while (end := answer_until_end(options, say)) is not End.DONE:
            if not told:
                say("the connection broke; trying again until the server accepts it")
                told = True
            if end is End.BROKEN:  # it was reachable before: it will come back
                refused_at, patience = inf, inf
            else:
                refused_at = min(refused_at, time.monotonic())
            if time.monotonic() > refused_at + KEY_TIME:
                raise FedkinError(
                    f"{options.server} does not accept this site: another one with its key is "
                    f"connected, or {options.site.home / 'flower'} says why"
                )
            time.sleep(AGAIN)
            wait_for_server(options.server, authority, say, patience)


def answer_until_end(options: JoinOptions, say: Callable[[str], None]) -> End:
    """Answer messages until the connection ends."""
    home = options.site.home / "flower"
    home.mkdir(exist_ok=True)
    place = Endpoint(f"127.0.0.1:{free_port()}", home / "secret")
    write_private(place.secret, secrets.token_bytes(32))
    node = start_node(options, place, home)
    site, leave_at, told, backoff = options.site, inf, "", Backoff(0.02, 0.2)
    try:
        with place.for_tasks() as tasks:
            while node.exit_code is None and time.monotonic() < leave_at:
                if not answer_waiting(place, tasks, site):
                    backoff.take()
                    continue
                backoff.over()
                if site.finished:
                    site.begin_anew()
                    say(f"finished: {site.result}")
                    leave_at = inf if options.stay else time.monotonic() + LINGER
                elif site.refused is not None and told != site.refused:
                    told = site.refused
                    if options.stay:
                        say(f"'{site.name}' cannot take part: {told}")
                    else:
                        leave_at = time.monotonic() + LINGER
    finally:
        node.stop()
    if site.refused is not None and leave_at < inf:
        raise FedkinError(f"'{site.name}' cannot take part: {site.refused}")
    if leave_at < inf:
        return End.DONE
    return End.BROKEN if "SuperNode ID" in node.said() else End.NOT_TAKEN


def start_node(options: JoinOptions, place: Endpoint, home: Path) -> Child:
    words: list[object] = [options.poll, MOST_PER_REQUEST, place.secret]
    words += ["--superlink", options.server]
    if options.keys is None:
        words.append("--insecure")
    else:
        words += ["--root-certificates", options.keys.authority]
        words += ["--auth-supernode-private-key", options.keys.key]
    host, _, port = place.address.partition(":")
    words += ["--isolation", "process", "--superexec-auth-secret-file", place.secret]
    words += ["--host", host, "--port", port]
    return Child("supernode.py", words, home, home / "supernode.log", options.log_level)


def answer_waiting(place: Endpoint, tasks: RuntimeHttpClient, site: SiteWorker | Machine) -> bool:
    """Answer the waiting message, if there is one. A failure inside Flower affects this message
    only: the server continues without the answer, or asks again."""
    try:
        task = acquire(tasks, TaskType.CLIENT_APP)
        if task is not None:
            with place.with_token(task[0]) as client:
                answer_message(client, site)
        return task is not None
    except (httpx.HTTPError, ObjectPullError, IndexError):  # not yet listening, or ending
        return False


def pull_message(client: RuntimeHttpClient) -> tuple[Message, Context]:
    """The message of a task, whose pieces may still be on their way to the SuperNode."""
    begun = client.PullTaskInput(PullTaskInputRequest())
    context = context_from_proto(begun.context)
    # Flower reads the sender of messages from here
    TaskIdentity.task_id, TaskIdentity.run_id = begun.task_id, begun.run.run_id
    TaskIdentity.node_id = context.node_id
    tree = client.PullMessages(PullAppMessagesRequest()).message_object_trees[0]
    about = Node(node_id=context.node_id), context.run_id
    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(client.PullObject, *about),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, *about),
        return_type=Message,
        initial_backoff=PIECES[0],
        backoff_cap=PIECES[1],
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message, context


def answer_message(client: RuntimeHttpClient, site: SiteWorker | Machine) -> None:
    """One message: what Flower's own client app process does, without the process."""
    with heartbeat(client):
        message, context = pull_message(client)
        status, details = SubStatus.COMPLETED, ""
        start = time.monotonic()
        try:
            answer = reply(message, site)
            took = time.monotonic() - start
            debugger(site.say)(f"answered a message in {took:.2f} s")
        except Exception as error:  # a step that fails must not end the site
            warner(site.say)(f"a request could not be answered: {type(error).__name__}: {error}")
            # an error's text may quote data, which must not reach the server
            status, details = SubStatus.FAILED, type(error).__name__
            failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details)
            answer = Message(failed, reply_to=message)
        # a piece that the server already has from another site is not sent: once the rest is
        # sent, the SuperNode does not need it any more
        with suppress(ObjectPushError):
            push_message(client, answer, context)
        push_task_output(client, context, status, details)
