"""Spark writes and reads by TLS and behind a login, by Kafka's names; neither plan nor checkpoint has the password."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bus import Admin, NewTopic
from bus.platform.system_clock import SystemClock
from bus.runtime.user_directory import UserLedger
from bus.security.scram import SCRAM_SHA_512, salt_password
from bus.security.users import SetScram
from bus.settings.broker import BrokerConfig
from bus.storage_delta.root import open_storage
from tests.support.broker_thread import running_broker
from tests.support.certificates import Authority
from tests.support.identity_provider import AUDIENCE, ISSUER, identity_provider

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = "hush-hush"


def test_spark_writes_and_reads_by_tls(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    own = authority.issue("spark", password=PASSWORD)
    config = BrokerConfig(
        listeners=("SSL://127.0.0.1:0",),
        ssl_keystore_location=str(authority.issue("broker").both),
        ssl_truststore_location=str(authority.path),
        ssl_client_auth="required",
    )
    settings = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(authority.path),
        "ssl.keystore.location": str(own.both),
        "ssl.key.password": PASSWORD,
    }
    options = {f"kafka.{name}": value for name, value in settings.items()}
    with running_broker(tmp_path / "root", config=config) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address, **{name.replace(".", "_"): value for name, value in settings.items()}) as admin:
            admin.create_topics([NewTopic("t", partitions=1)])
        frame = spark.range(10).selectExpr("cast(id as string) as value")
        target = frame.write.format("bus").option("bus.bootstrap.servers", address).option("topic", "t")
        target.options(**options).mode("append").save()
        batch = {"bus.transactional": "true", "bus.txnAppId": "by-tls", "bus.txnVersion": "0"}
        for _ in range(2):  # the second run finds that the first one has written
            target.options(**options, **batch).mode("append").save()
        source = spark.read.format("bus").option("bus.bootstrap.servers", address).option("subscribe", "t")
        read = source.options(**options).load()
        found = read.selectExpr("cast(value as string) as value").collect()
        assert sorted(int(row.value) for row in found) == sorted([*range(10), *range(10)])
        plan = read._jdf.queryExecution().toString()
        assert PASSWORD not in plan
        stream = spark.readStream.format("bus").option("bus.bootstrap.servers", address).option("subscribe", "t")
        checkpoint = tmp_path / "checkpoint"
        query = (
            stream.options(**options, startingOffsets="earliest")
            .load()
            .writeStream.format("memory")
            .queryName("by_tls")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(250)
        assert spark.table("by_tls").count() == 20
        files = [path for path in checkpoint.rglob("*") if path.is_file()]
        assert files
        assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]


def test_a_key_as_pem_is_not_in_the_plan_of_a_view(spark: SparkSession, tmp_path: Path) -> None:
    """Spark finds passwords by the names of options; the event log and the web page get the same text as the store."""
    authority = Authority(tmp_path / "pki")
    own = authority.issue("spark")
    key = own.key.read_text()
    config = BrokerConfig(
        listeners=("SSL://127.0.0.1:0",),
        ssl_keystore_location=str(authority.issue("broker").both),
        ssl_truststore_location=str(authority.path),
        ssl_client_auth="required",
    )
    options = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": str(authority.path),
        "kafka.ssl.keystore.certificate.chain": own.certificate.read_text(),
        "kafka.ssl.keystore.key": key,
    }
    with running_broker(tmp_path / "root", config=config) as broker:
        source = spark.read.format("bus").option("bus.bootstrap.servers", f"127.0.0.1:{broker.port}")
        source.options(**options).option("subscribe", "t").load().createOrReplaceTempView("keys_in_options")
    assert spark.catalog.dropTempView("keys_in_options")
    store = spark._jsparkSession.sharedState().statusStore()
    plans = [store.executionsList().apply(number) for number in range(store.executionsList().size())]
    shown = [plan.physicalPlanDescription() for plan in plans]
    assert any("kafka.ssl.keystore.key" in text for text in shown)
    assert not [text for text in shown if key.splitlines()[1] in text]


def test_spark_logs_in_and_shows_no_password(spark: SparkSession, tmp_path: Path) -> None:
    """Source and sink, in a batch and as a stream, by the line of JAAS that Spark's jobs bring along."""
    root = tmp_path / "root"
    storage = open_storage(str(root), exclusive=False)
    salted = salt_password(SCRAM_SHA_512, PASSWORD, b"some salt", 4096)
    alteration = SetScram("spark", SCRAM_SHA_512.name, 4096, b"some salt", salted)
    UserLedger(storage, SystemClock()).alter([alteration])
    storage.close()
    config = BrokerConfig(
        listeners=("SASL_PLAINTEXT://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
        inter_broker_listener_name="PLAINTEXT",
        num_partitions=1,
    )
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": SCRAM_SHA_512.name,
        "sasl.jaas.config": f'{module} required username="spark" password="{PASSWORD}";',
    }
    options = {f"kafka.{name}": value for name, value in settings.items()}
    with running_broker(root, config=config) as broker:
        options["bus.bootstrap.servers"] = f"127.0.0.1:{broker.ports['SASL_PLAINTEXT']}"
        with Admin(f"127.0.0.1:{broker.ports['PLAINTEXT']}") as admin:
            admin.create_topics([NewTopic("t", partitions=1), NewTopic("copied", partitions=1)])
        frame = spark.range(10).selectExpr("cast(id as string) as value")
        frame.write.format("bus").options(**options, topic="t").mode("append").save()
        read = spark.read.format("bus").options(**options, subscribe="t").load()
        assert read.count() == 10
        assert PASSWORD not in read._jdf.queryExecution().toString()
        read = spark.read.format("bus").options(**profile_in(tmp_path, options), subscribe="t").load()
        assert read.count() == 10
        assert PASSWORD not in read._jdf.queryExecution().toString()
        checkpoint = tmp_path / "checkpoint"
        stream = spark.readStream.format("bus").options(**options, subscribe="t", startingOffsets="earliest").load()
        query = (
            stream.selectExpr("value")
            .writeStream.format("bus")
            .options(**options, topic="copied", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(250)
        copied = spark.read.format("bus").options(**options, subscribe="copied").load()
        assert copied.count() == 10
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]


def profile_in(folder: Path, options: dict[str, str]) -> dict[str, str]:
    """The same address and connection by a profile, as options."""
    lines = [f"{name.removeprefix('kafka.').removeprefix('bus.')} = '{value}'" for name, value in options.items()]
    path = folder / "config.toml"
    path.write_text("\n".join(["[prod]", *lines, ""]))
    path.chmod(0o600)
    return {"bus.profile": "prod", "bus.configFile": str(path)}


def test_spark_logs_in_by_tokens_and_shows_no_secret(spark: SparkSession, tmp_path: Path) -> None:
    """Source and sink; the secret in the line of JAAS of the one, in a file of the other."""
    with identity_provider() as provider:
        (secret,) = provider.clients.values()
        config = BrokerConfig(
            listeners=("SASL_PLAINTEXT://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
            inter_broker_listener_name="PLAINTEXT",
            sasl_enabled_mechanisms=("OAUTHBEARER",),
            sasl_oauthbearer_jwks_endpoint_url=f"{provider.url}/keys",
            sasl_oauthbearer_expected_issuer=ISSUER,
            sasl_oauthbearer_expected_audience=(AUDIENCE,),
            num_partitions=1,
        )
        file = tmp_path / "secret"
        file.write_text(secret)
        module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
        settings = {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": f"{provider.url}/token",
        }
        by_jaas = {"kafka.sasl.jaas.config": f'{module} required clientId="loader" clientSecret="{secret}";'}
        by_file = {
            "kafka.sasl.oauthbearer.client.id": "loader",
            "kafka.sasl.oauthbearer.client.secret.file": str(file),
        }
        checkpoint = tmp_path / "checkpoint"
        with running_broker(tmp_path / "root", config=config) as broker:
            settings["bus.bootstrap.servers"] = f"127.0.0.1:{broker.ports['SASL_PLAINTEXT']}"
            with Admin(f"127.0.0.1:{broker.ports['PLAINTEXT']}") as admin:
                admin.create_topics([NewTopic("t", partitions=1), NewTopic("copied", partitions=1)])
            frame = spark.range(10).selectExpr("cast(id as string) as value")
            frame.write.format("bus").options(**settings, **by_file, topic="t").mode("append").save()
            read = spark.read.format("bus").options(**settings, **by_jaas, subscribe="t").load()
            assert read.count() == 10
            assert secret not in read._jdf.queryExecution().toString()
            source = {**settings, **by_jaas, "subscribe": "t", "startingOffsets": "earliest"}
            query = (
                spark.readStream.format("bus")
                .options(**source)
                .load()
                .selectExpr("value")
                .writeStream.format("bus")
                .options(**settings, **by_file, topic="copied", checkpointLocation=str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(250)
            assert spark.read.format("bus").options(**settings, **by_file, subscribe="copied").load().count() == 10
        files = [path for path in checkpoint.rglob("*") if path.is_file()]
        assert files
        assert not [path for path in files if secret.encode() in path.read_bytes()]
