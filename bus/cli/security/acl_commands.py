"""`bus acls`: access control lists. The options and the texts are those of kafka-acls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from bus.cli.commands import BusGroup
from bus.cli.options import address_option, confirm, is_asked, listing_format_option, open_admin, yes_option
from bus.cli.output import Column, Columns, echo, write_listing
from bus.cli.security.acl_export import (
    GrantPlan,
    Grants,
    parse_principal_map,
    posix_script,
)
from bus.cli.security.posix_check import check_files, find_open_topic
from bus.security.acl_decisions import AclPolicy, Decision, DefaultRule, Requester, decide_access
from bus.security.acl_index import index_of
from bus.security.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    AclResource,
    AclResourceType,
    PatternMatch,
    PatternType,
)
from bus.security.file_readers import plan_file_readers

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin

_COLUMNS: Columns[AclBinding] = (
    Column("resource_type", lambda one: one.resource_type.value, is_key=True),
    Column("resource_name", lambda one: one.resource_name, is_key=True),
    Column("pattern_type", lambda one: one.pattern_type.value),
    Column("principal", lambda one: one.principal),
    Column("host", lambda one: one.host),
    Column("operation", lambda one: one.operation.value),
    Column("permission", lambda one: one.permission.value),
)
_Pattern = tuple[AclResourceType, str]  # and a name
_Op, _Type = AclOperation, AclResourceType
_RESOURCE_TYPES = {
    "topic": _Type.TOPIC,
    "group": _Type.GROUP,
    "cluster": _Type.CLUSTER,
    "transactional-id": _Type.TRANSACTIONAL_ID,
}
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def _parse_operation(_: click.Context, __: click.Parameter, texts: Any) -> Any:
    """One or several; capitals, dashes and underscores make no difference. Raises `click.BadParameter`."""
    return tuple(map(_operation, texts)) if isinstance(texts, tuple) else _operation(texts)


def _complete_operations(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [one.value for one in AclOperation if one.value.casefold().startswith(incomplete.casefold())]


def _operation(text: str) -> AclOperation:
    known = {one.value.casefold(): one for one in AclOperation}
    found = known.get(text.replace("-", "").replace("_", "").casefold())
    if found is None:
        raise click.BadParameter(f"expected one of {', '.join(one.value for one in AclOperation)}, found {text!r}")
    return found


def _resource_options(pattern_types: Iterable[str], default: str) -> Callable[[CommandT], CommandT]:
    def decorate(command: CommandT) -> CommandT:
        for option in (
            click.option(
                "--resource-pattern-type",
                type=click.Choice(list(pattern_types)),
                default=default,
                help=_pattern_help(pattern_types),
            ),
            click.option(
                "--transactional-id", "transactional_ids", multiple=True, metavar="ID", help="'*' for all; repeatable."
            ),
            click.option("--cluster", is_flag=True, help="The cluster itself."),
            click.option("--group", "groups", multiple=True, metavar="GROUP", help="'*' for all; repeatable."),
            click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="'*' for all; repeatable."),
        ):
            command = option(command)
        return command

    return decorate


def _pattern_help(pattern_types: Iterable[str]) -> str:
    meant = "literal: the names are whole names; prefixed: names begin with them"
    if PatternMatch.MATCH.value in pattern_types:
        meant += "; any: ACLs of either kind; match: every ACL that applies to these names"
    return f"{meant}."


def _rule_options(command: CommandT) -> CommandT:
    for option in (
        click.option("--idempotent", is_flag=True, help="Also IdempotentWrite on the cluster."),
        click.option("--consumer", is_flag=True, help="Read and Describe on topics, Read on groups."),
        click.option(
            "--producer",
            is_flag=True,
            help="Write, Describe, Create on topics; Write, Describe on transactional ids.",
        ),
        click.option(
            "--operation",
            "operations",
            multiple=True,
            metavar="NAME",
            callback=_parse_operation,
            shell_complete=_complete_operations,
            help="Read, Write, Create, Delete, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, "
            "IdempotentWrite or All; repeatable.  [default: All]",
        ),
        click.option(
            "--deny-host",
            "deny_hosts",
            multiple=True,
            metavar="IP",
            help="From where --deny-principal may not; repeatable.  [default: anywhere]",
        ),
        click.option(
            "--allow-host",
            "allow_hosts",
            multiple=True,
            metavar="IP",
            help="From where --allow-principal may; repeatable.  [default: anywhere]",
        ),
        click.option("--deny-principal", "deny", multiple=True, metavar="User:NAME", help="Who may not; repeatable."),
        click.option("--allow-principal", "allow", multiple=True, metavar="User:NAME", help="Who may; repeatable."),
    ):
        command = option(command)
    return command


@click.group(cls=BusGroup)
def acls() -> None:
    """Access control lists: list, add and remove them, and show which rule decides."""


@acls.command(
    examples="""
    bus acls add --allow-principal User:alice --operation Read --topic orders
    bus acls add --allow-principal User:alice --consumer --topic orders --group billing
    bus acls add --allow-principal User:bob --producer --topic ord --resource-pattern-type prefixed
    bus acls add --deny-principal User:bob --operation All --topic '*'
    """
)
@_rule_options
@_resource_options([one.value for one in PatternType], PatternType.LITERAL.value)
@address_option()
def add(resource_pattern_type: str, address: str, **options: Any) -> None:
    """Add ACLs. Every broker that serves acts by them once the command ends."""
    pattern_type = PatternType(resource_pattern_type)
    wanted = list(_bindings(pattern_type, **options))
    if not wanted:
        raise click.UsageError("expected --allow-principal or --deny-principal, found neither")
    with open_admin(address) as admin:
        admin.create_acls(wanted)
        _write_by_resource("Adding", wanted)  # kafka-acls says so before it knows
        for of_resource in _by_resource(wanted):
            first = of_resource[0]
            match = PatternMatch(first.pattern_type.value)
            _write_by_resource(
                "Current", admin.describe_acls(AclBindingFilter(first.resource_type, first.resource_name, match))
            )
        topic = find_open_topic(admin.describe_cluster().root_url)
    if topic is not None:
        echo(
            f"note: every user of this machine may read the files of topic {topic}, whatever ACLs say; "
            "`bus acls export --check` shows where",
            err=True,
        )


@acls.command(
    examples="""
    bus acls remove --allow-principal User:alice --operation Read --topic orders
    bus acls remove --topic orders
    bus acls remove --topic orders --resource-pattern-type match --yes
    """
)
@_rule_options
@_resource_options([one.value for one in PatternMatch], PatternMatch.LITERAL.value)
@yes_option("--force")
@address_option()
def remove(resource_pattern_type: str, is_sure: bool, address: str, **options: Any) -> None:
    """Remove ACLs: those that the same options would add, or all of the resources."""
    match = PatternMatch(resource_pattern_type)
    if options["allow"] or options["deny"]:
        filters = [replace(_filter_of(acl), pattern_type=match) for acl in _bindings(PatternType.LITERAL, **options)]
    else:
        given = [name for name in ("operations", "producer", "consumer", "idempotent") if options[name]]
        if given:
            raise click.UsageError(f"expected --allow-principal or --deny-principal with --{given[0].rstrip('s')}")
        filters = [AclBindingFilter(kind, name, match) for kind, name in _resources(**options)]
    if not filters:
        raise click.UsageError("expected --topic, --group, --cluster or --transactional-id, found none")
    with open_admin(address) as admin:
        found = dict.fromkeys(acl for one in filters for acl in admin.describe_acls(one))
        if not found:
            echo("no ACL is like that", err=True)
            return
        if is_asked(is_sure=is_sure):
            _write_by_resource("Found", found, is_for_question=True)
        confirm("Are you sure you want to remove these ACLs?", is_sure=is_sure, otherwise="no ACL was removed")
        removed = dict.fromkeys(acl for acls in admin.delete_acls(filters).values() for acl in acls)
        _write_by_resource("Removing", removed)


@acls.command(
    "list",
    examples="""
    bus acls list
    bus acls list --topic orders --resource-pattern-type match
    bus acls list --principal User:alice --format json
    """,
)
@click.option("--principal", "principals", multiple=True, metavar="User:NAME", help="Only theirs; repeatable.")
@_resource_options([one.value for one in PatternMatch], PatternMatch.LITERAL.value)
@listing_format_option()
@address_option()
def list_acls(
    principals: tuple[str, ...], resource_pattern_type: str, form: str | None, address: str, **options: Any
) -> None:
    """List the ACLs, or those of resources. Without --format in the form of kafka-acls."""
    resources: list[_Pattern | None] = list(_resources(**options)) or [None]
    match = PatternMatch(resource_pattern_type)
    with open_admin(address) as admin:
        found: dict[AclBinding, None] = {}
        for resource, principal in itertools.product(resources, principals or (None,)):
            wanted = AclBindingFilter(principal=principal)
            if resource is not None:
                wanted = replace(wanted, resource_type=resource[0], resource_name=resource[1], pattern_type=match)
            found.update(dict.fromkeys(admin.describe_acls(wanted)))
    if form is None:
        _write_by_resource("Current", found)
    else:
        write_listing(_COLUMNS, found, form)


@acls.command(
    examples="""
    bus acls check alice read topic orders
    bus acls check User:CN=loader write topic orders --host 10.0.0.1
    bus acls check alice alter cluster
    """
)
@click.argument("principal")
@click.argument("operation", callback=_parse_operation, shell_complete=_complete_operations)
@click.argument("resource_type", metavar="RESOURCE", type=click.Choice(list(_RESOURCE_TYPES)))
@click.argument("name", required=False)
@click.option("--host", default=ANY_HOST, metavar="IP", help="From where; without it from one that no ACL names.")
@address_option()
def check(
    principal: str, operation: AclOperation, resource_type: str, name: str | None, host: str, address: str
) -> None:
    """Say whether PRINCIPAL may do OPERATION on RESOURCE (topic, group, cluster, transactional-id) NAME, and which rule
    decides it. Ends with 1 if not."""
    kind = _RESOURCE_TYPES[resource_type]
    if (name is None) is not (kind is _Type.CLUSTER):
        raise click.UsageError(
            f"expected {'no name' if name else 'a name'} with {resource_type}, found {repr(name) if name else 'none'}"
        )
    who = principal if ":" in principal else f"User:{principal}"
    resource = AclResource(kind, name or CLUSTER_NAME)
    with open_admin(address) as admin:
        decision = _decide(admin, Requester(who, "" if host == ANY_HOST else host), operation, resource)
    may = "may" if decision.is_allowed else "may not"
    echo(f"{who} {may} {operation.value} {resource}: {_show_rule(decision)}")
    if not decision.is_allowed:
        raise SystemExit(1)


@acls.command(
    examples="""
    bus acls export --as posix > readers.sh
    bus acls export --as posix --principal-map people.txt
    bus acls export --as posix --principal-map people.txt --check
    """
)
@click.option("--as", type=click.Choice(["posix"]), required=True, expose_value=False, help="Commands of setfacl.")
@click.option(
    "--principal-map",
    type=click.File(),
    metavar="FILE",
    help="Who principals are in the storage, one a line: User:CN=alice u:alice, or User:ops g:staff.",
)
@click.option("--root", metavar="PLACE", help="Where readers find the root.  [default: where the broker has it]")
@click.option("--tables-only", is_flag=True, help="For readers that open a table by its path: no cluster metadata.")
@click.option("--check", "is_check", is_flag=True, help="Print where the rights in force differ, and end with 1 if so.")
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="WHO",
    help="Who is a broker in the storage, as in the map, for --check; repeatable. Owner and group of a local root are.",
)
@address_option()
def export(
    principal_map: IO[str] | None,
    root: str | None,
    tables_only: bool,
    is_check: bool,
    brokers: tuple[str, ...],
    address: str,
) -> None:
    """Write what grants the readers of topics their files, as bus sql and Spark with bus.root read them.
    What the storage cannot express of the ACLs is listed: as comments of the script, or on standard error."""
    if brokers and not is_check:
        raise click.UsageError("expected --check with --broker, found none")
    mapped = parse_principal_map("" if principal_map is None else principal_map.read())
    with open_admin(address) as admin:
        index = index_of(admin.describe_acls(AclBindingFilter(_Type.TOPIC)))
        topics = admin.list_topics(include_internal=True)
        readers = plan_file_readers(index, topics, _policy(admin))
        place = (root or admin.describe_cluster().root_url).rstrip("/")
    grants = GrantPlan(mapped).grants(readers)
    if is_check:
        differences = check_files(grants, place, topics, tables_only=tables_only, brokers=brokers)
        _write_differences(differences, grants)
    else:
        echo("\n".join(posix_script(grants, place, tables_only=tables_only)))


def _write_differences(differences: Iterable[str], grants: Grants) -> None:
    for line in grants.not_expressed:
        echo(f"not expressed: {line}", err=True)
    is_different = False
    for line in differences:
        is_different = True
        echo(line)
    if is_different:
        raise SystemExit(1)


def _decide(admin: Admin, requester: Requester, operation: AclOperation, resource: AclResource) -> Decision:
    about = admin.describe_acls(AclBindingFilter(resource.resource_type, resource.name, PatternMatch.MATCH))
    return decide_access(index_of(about), requester, operation, resource, _policy(admin))


def _policy(admin: Admin) -> AclPolicy:
    """Return the policy by which the broker that answers is configured."""
    names = ("super.users", "allow.everyone.if.no.acl.found")
    configs = {one.name: one.value for one in admin.describe_configs(kind="broker", keys=names)}
    super_users = frozenset(one.strip() for one in configs[names[0]].split(";"))
    return AclPolicy(super_users, configs[names[1]] == "true")


def _show_rule(decision: Decision) -> str:
    match decision.rule:
        case DefaultRule.SUPER_USER:
            return "a super user (super.users)"
        case DefaultRule.ALLOW:
            return "no ACL names it (allow.everyone.if.no.acl.found)"
        case DefaultRule.DENY:
            return "no ACL allows it"
        case acl:
            return str(acl)


# ------------------------------------------------------------------ what options stand for


def _resources(
    topics: Sequence[str], groups: Sequence[str], cluster: bool, transactional_ids: Sequence[str], **_: Any
) -> Iterator[_Pattern]:
    yield from ((_Type.TOPIC, name) for name in topics)
    yield from ((_Type.GROUP, name) for name in groups)
    if cluster:
        yield _Type.CLUSTER, CLUSTER_NAME
    yield from ((_Type.TRANSACTIONAL_ID, name) for name in transactional_ids)


def _bindings(
    pattern_type: PatternType,
    *,
    allow: Sequence[str],
    deny: Sequence[str],
    allow_hosts: Sequence[str],
    deny_hosts: Sequence[str],
    **options: Any,
) -> Iterator[AclBinding]:
    """Raises `click.UsageError`."""
    operations = list(dict.fromkeys(_operations(**options)))
    for principals, hosts, permission, name in (
        (allow, allow_hosts, AclPermission.ALLOW, "allow"),
        (deny, deny_hosts, AclPermission.DENY, "deny"),
    ):
        if hosts and not principals:
            raise click.UsageError(f"expected --{name}-principal with --{name}-host, found none")
        for (kind, resource), operation in operations:
            for principal, host in itertools.product(principals, hosts or (ANY_HOST,)):
                of_type = PatternType.LITERAL if kind is _Type.CLUSTER else pattern_type
                yield AclBinding(kind, resource, of_type, principal, host, operation, permission)


def _operations(
    *,
    operations: Sequence[AclOperation],
    producer: bool,
    consumer: bool,
    idempotent: bool,
    **options: Any,
) -> Iterator[tuple[_Pattern, AclOperation]]:
    """Raises `click.UsageError`."""
    resources = list(_resources(**options))
    of_type = {kind: [one for one in resources if one[0] is kind] for kind in _Type}
    if (producer or consumer) and not of_type[_Type.TOPIC]:
        raise click.UsageError(f"expected --topic with --{'producer' if producer else 'consumer'}, found none")
    if consumer and not of_type[_Type.GROUP]:
        raise click.UsageError("expected --group with --consumer, found none")
    if not resources and not idempotent:
        raise click.UsageError("expected --topic, --group, --cluster or --transactional-id, found none")
    is_short = producer or consumer or idempotent
    if not is_short or operations:
        yield from itertools.product(resources, operations or (_Op.ALL,))
    if producer:
        yield from itertools.product(of_type[_Type.TOPIC], (_Op.WRITE, _Op.DESCRIBE, _Op.CREATE))
        yield from itertools.product(of_type[_Type.TRANSACTIONAL_ID], (_Op.WRITE, _Op.DESCRIBE))
    if consumer:
        yield from itertools.product(of_type[_Type.TOPIC], (_Op.READ, _Op.DESCRIBE))
        yield from itertools.product(of_type[_Type.GROUP], (_Op.READ,))
    if idempotent:
        yield (_Type.CLUSTER, CLUSTER_NAME), _Op.IDEMPOTENT_WRITE


def _filter_of(acl: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        acl.resource_type,
        acl.resource_name,
        PatternMatch(acl.pattern_type.value),
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )


# ------------------------------------------------------------------ what is printed


def show_resource(acl: AclBinding) -> str:
    """Show it as kafka-acls prints it."""
    return (
        f"ResourcePattern(resourceType={acl.resource_type.name}, name={acl.resource_name}, "
        f"patternType={acl.pattern_type.name})"
    )


def _by_resource(acls: Iterable[AclBinding]) -> list[list[AclBinding]]:
    found: dict[str, list[AclBinding]] = {}
    for acl in acls:
        found.setdefault(show_resource(acl), []).append(acl)
    return list(found.values())


def _write_by_resource(what: str, acls: Iterable[AclBinding], *, is_for_question: bool = False) -> None:
    for of_resource in _by_resource(acls):
        echo(f"{what} ACLs for resource `{show_resource(of_resource[0])}`:", err=is_for_question)
        for acl in of_resource:
            echo(
                f"\t(principal={acl.principal}, host={acl.host}, operation={acl.operation.name}, "
                f"permissionType={acl.permission.name})",
                err=is_for_question,
            )
        echo(err=is_for_question)
