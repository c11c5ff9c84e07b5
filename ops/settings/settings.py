"""Every knob, read once in a ``main`` module and handed down as frozen values.

Precedence: command line > ``SEMANTIC_*`` environment > the configuration file > the user's own
``~/.config/semantic/semantic.toml`` > the defaults below. The configuration file is the one that
``--config`` or ``SEMANTIC_CONFIG`` names. Without one, ``semantic serve`` and the commands on the
log read the ``semantic.toml`` of the working directory if it is trusted. A nested name is written
with two underscores: ``SEMANTIC_SERVER__PORT=8123``.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ops.settings.api_keys import first_sendable
from ops.settings.models import ModelSettings, ModelsSettings, refuse_repeated_names
from ops.settings.places import default_data_dir, user_config_file
from ops.settings.service import (
    CacheSettings,
    DiskSettings,
    EngineSettings,
    JobSettings,
    LogSettings,
    MetricsSettings,
    RedisSettings,
    RetentionSettings,
    ServerSettings,
    TracingSettings,
    WebhookSettings,
)
from ops.settings.trusted_files import DIRECTORY_FILE, DirectoryFile
from ops.terminal_text import visible_line

#: Variable of a part of the service: ``[models]`` of the user's file when the service started. Such
#: a part takes only ``[models]`` from that file.
USER_MODELS_ENV: Final = "SEMANTIC_USER_MODELS"
#: Name under which the settings take these models in place of the user's file.
_USER_MODELS: Final = "user_models"
_SQLITE: Final = "sqlite:///"
_OF_A_GROUP: Final = re.compile(r"SEMANTIC_([A-Z]\w*?)__", re.IGNORECASE)


class ConfigFileError(ValueError):
    """A configuration file that cannot be used; the message names it."""


class _TomlFile(TomlConfigSettingsSource):
    """Settings of a TOML file.

    Args:
        required: Whether a file that does not exist is an error.
        content: Its content where that was read already: what was compared with a digest.
        only: The one group to take from it; all without one.
    """

    def __init__(
        self,
        settings_cls: type[BaseSettings],
        path: Path,
        *,
        required: bool = False,
        content: bytes | None = None,
        only: str | None = None,
    ) -> None:
        self._required = required
        self._content = content
        self._only = only
        super().__init__(settings_cls, path)

    def _read_files(self, files: Any, deep_merge: bool = False) -> dict[str, Any]:  # noqa: ANN401, FBT001, FBT002 - overridden
        if not self._required and self._content is None:
            return super()._read_files(files, deep_merge=deep_merge)
        return self._read_file(files)

    def _read_file(self, file_path: Any) -> dict[str, Any]:  # noqa: ANN401 - overridden
        try:
            values = (
                super()._read_file(file_path)
                if self._content is None
                else tomllib.loads(self._content.decode())
            )
        except OSError as error:
            message = f"the configuration file {file_path} cannot be read: {error.strerror}"
            raise ConfigFileError(message) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            message = f"the configuration file {file_path} is not valid TOML: {error}"
            raise ConfigFileError(message) from error
        if self._only is not None:
            return {name: value for name, value in values.items() if name == self._only}
        if "config" in values:
            message = f"the configuration file {file_path} cannot name another one (config)"
            raise ConfigFileError(message)
        return values


class Settings(BaseSettings):
    """All groups, and where everything is kept."""

    model_config = SettingsConfigDict(
        env_prefix="SEMANTIC_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,  # it may be a key
    )

    config: Path | None = None
    """This file of settings has precedence over the user's own."""
    data_dir: Path = Field(default_factory=default_data_dir)
    """Everything that the service writes lives in this directory."""
    api_key: SecretStr | None = None
    """Our own commands send this key; by default the first of server.api_keys that is no digest."""
    server: ServerSettings = ServerSettings()
    redis: RedisSettings = RedisSettings()
    log: LogSettings = LogSettings()

    model: ModelSettings = ModelSettings()
    models: ModelsSettings = ModelsSettings()
    engine: EngineSettings = EngineSettings()
    cache: CacheSettings = CacheSettings()
    disk: DiskSettings = DiskSettings()
    jobs: JobSettings = JobSettings()
    metrics: MetricsSettings = MetricsSettings()
    webhooks: WebhookSettings = WebhookSettings()
    retention: RetentionSettings = RetentionSettings()
    tracing: TracingSettings = TracingSettings()

    @model_validator(mode="before")
    @classmethod
    def _separate(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Leave out what ``settings_customise_sources`` alone has a use for."""
        own = {DIRECTORY_FILE, _USER_MODELS}
        return {name: value for name, value in values.items() if name not in own}

    @field_validator("config", mode="before")
    @classmethod
    def _drop_empty_path(cls, path: Any) -> Any:  # noqa: ANN401 - checked by pydantic afterwards
        return path or None

    @model_validator(mode="after")
    def _have_one_model_for_each_name(self) -> Self:
        refuse_repeated_names(self.model, self.models)
        return self

    @property
    def log_url(self) -> str:
        """SQLAlchemy URL of the event log."""
        return self.log.url or f"{_SQLITE}{self.data_dir.absolute() / 'events.sqlite3'}"

    @property
    def log_file(self) -> Path | None:
        """The file of the event log; ``None`` where a database server has it."""
        url = self.log_url
        return Path(url.removeprefix(_SQLITE)) if url.startswith(_SQLITE) else None

    @property
    def own_key(self) -> str | None:
        """What our own commands send to the service."""
        if self.api_key is not None:
            return self.api_key.get_secret_value()
        return first_sendable(key.get_secret_value() for key in self.server.api_keys)

    @property
    def logs_dir(self) -> Path:
        """Where the log files of the parts lie."""
        return self.data_dir.absolute() / "logs"

    @property
    def cache_dir(self) -> Path:
        """Where the blocks of contexts lie."""
        return (self.cache.dir or self.data_dir / "cache").absolute()

    @property
    def broker_dir(self) -> Path:
        """Where a private broker keeps its socket and its data."""
        return self.data_dir.absolute() / "broker"

    @property
    def config_files(self) -> tuple[Path, ...]:
        """The configuration files, the strongest first; they need not exist."""
        return *filter(None, [self.config]), user_config_file()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the two TOML files below the environment; no ``.env`` is read.

        A variable ``SEMANTIC_GROUP__NAME`` of an unknown group is a setting too, so that it is
        refused; other programs set variables like ``SEMANTIC_PORT``.

        Raises:
            ConfigFileError: A file cannot be used.
        """
        del dotenv_settings, file_secret_settings
        given = init_settings()
        above = (init_settings, env_settings)
        named = next((path for source in above if (path := source().get("config"))), None)
        here = given.get(DIRECTORY_FILE)
        only = "models" if USER_MODELS_ENV in os.environ else None
        files: list[PydanticBaseSettingsSource] = [
            InitSettingsSource(settings_cls, {"models": given[_USER_MODELS]})
            if _USER_MODELS in given
            else _TomlFile(settings_cls, user_config_file(), only=only)
        ]
        if named is not None:
            path = Path(named).expanduser().absolute()
            files.insert(0, _TomlFile(settings_cls, path, required=True))
        elif isinstance(here, DirectoryFile):
            files.insert(0, _TomlFile(settings_cls, here.path, content=here.content))
        groups = {found[1].lower() for name in os.environ if (found := _OF_A_GROUP.match(name))}
        unknown = dict.fromkeys(sorted(groups - cls.model_fields.keys()))
        return (*above, *files, InitSettingsSource(settings_cls, unknown))


def load_settings(**overrides: Any) -> Settings:  # noqa: ANN401 - pydantic checks the values
    """Read the settings; call once, in a ``main``.

    Args:
        **overrides: Top-level values that beat every other source; groups as dicts.
            ``directory_file`` is the trusted file of the working directory, if it is to be read.

    Raises:
        pydantic.ValidationError: Naming each setting that is not valid.
        ConfigFileError: A configuration file is missing or no TOML.
    """
    return Settings(**overrides)


def load_part_settings() -> Settings:
    """Read the settings of a part of the service; call once, in its ``main``.

    A user's file that cannot be used, as while it is edited, costs a line on stderr. The part then
    takes ``[models]`` as it was in that file when the service started.

    Raises:
        pydantic.ValidationError: As of ``load_settings``, where the file is not the reason.
        ConfigFileError: As of ``load_settings``, where no service has started this process.
    """
    try:
        return load_settings()
    except (ConfigFileError, ValidationError) as error:
        if (models := os.environ.get(USER_MODELS_ENV)) is None:
            raise
        settings = load_settings(**{_USER_MODELS: json.loads(models)})
        why = visible_line(str(error).splitlines()[0])
        sys.stderr.write(f"semantic: [models] is used as it was at the start: {why}\n")
        return settings
