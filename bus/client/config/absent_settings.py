"""Settings of connections that Kafka's and librdkafka's clients have and the bus has not, and what to do instead.

For users of Kafka's client.properties: a setting that would do nothing is refused with the reason, not ignored.
"""

from __future__ import annotations

from bus.client.config.security import SECURITY_SETTINGS
from bus.errors import did_you_mean, near_names
from bus.security.scram import ABSENT_MECHANISMS
from bus.settings.keys import AbsentKeys

_GRPC_TLS = "gRPC chooses among TLS 1.2 and 1.3; ciphers are those of the environment's GRPC_SSL_CIPHER_SUITES"
_SASL = (
    "a client logs in by sasl_mechanism, and sasl_username and sasl_password, or sasl_jaas_config, or what begins with "
    "sasl_oauthbearer_"
)
_PEM = "keys and certificates are PEM, in files or inline: ssl_ca_location, ssl_certificate_pem, ssl_keystore_key ..."
_REASONS = {
    "enable_sasl_oauthbearer_unsecure_jwt": "an unsigned token proves nothing",
    "enable_ssl_certificate_verification": "certificates are always verified",
    "https_ca_pem": "give a file as https_ca_location",
    "oauth_cb": "give a function as sasl_oauth_token_provider",
    "sasl_login_callback_handler_class": (
        "leave it out: tokens come from sasl_oauthbearer_token_endpoint_url, or from sasl_oauth_token_provider"
    ),
    "sasl_oauthbearer_extensions": "a broker ignores extensions",
    "sasl_oauthbearer_grant_type": "the grant is client_credentials, by a secret or by sasl_oauthbearer_assertion_...",
    "sasl_oauthbearer_jwt_retriever_class": (
        "leave it out: with sasl_oauthbearer_assertion_... a client asks by client_credentials and an assertion"
    ),
    "security_providers": "TLS is gRPC's own",
    "ssl_endpoint_identification_algorithm": "the host in a certificate is always checked",
    "ssl_keystore_password": "keys and certificates are PEM: the password of a key is ssl_key_password",
    "ssl_truststore_password": "keys and certificates are PEM, and a file of certificates has no password",
}
_REASONS_BY_PREFIX = {
    "sasl_kerberos_": ABSENT_MECHANISMS["GSSAPI"],
    "sasl_": _SASL,
    "ssl_cipher_": _GRPC_TLS,
    "ssl_enabled_": _GRPC_TLS,
    "ssl_protocol": _GRPC_TLS,
    "ssl_": _PEM,
}


_ABSENT = AbsentKeys(_REASONS, _REASONS_BY_PREFIX)


def reason_of_absence(name: str) -> str | None:
    """Why there is no such setting, or which one was meant; None of a name that is not about connections. `name` has
    underscores."""
    near = [] if name in _REASONS else near_names(name, SECURITY_SETTINGS, likeness_min=0.9)
    return did_you_mean(near, before="") if near else _ABSENT.reason(name)


def is_known_absence(name: str) -> bool:
    """True if a user of Kafka or librdkafka may well bring along exactly this name."""
    return name in _REASONS
