"""The knobs: their environment variables, what is said about wrong ones, and how they reach other threads."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest
from shipped_knobs import defaults

from pygraph_inductor import config, environment, settings


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for knob in config.get_config_copy():
        monkeypatch.delenv(environment.variable(knob), raising=False)


@pytest.mark.parametrize("text, value", [("1", True), ("true", True), ("True", True), ("0", False), ("false", False)])
def test_boolean_variable_takes_numbers_and_words(monkeypatch, text, value):
    monkeypatch.setenv("PYGRAPH_STRICT", text)
    assert environment.flag("strict", not value) is value


@pytest.mark.parametrize("text", ["yes", "", "2"])
def test_bad_boolean_keeps_the_default_and_is_named(monkeypatch, caplog, text):
    monkeypatch.setenv("PYGRAPH_STRICT", text)
    assert environment.flag("strict", True) is True
    [record] = caplog.records
    assert "PYGRAPH_STRICT" in record.getMessage() and repr(text) in record.getMessage()


@pytest.mark.parametrize("text", ["-1", "64.5", "all"])
def test_bad_number_keeps_the_default_and_is_named(monkeypatch, caplog, text):
    monkeypatch.setenv("PYGRAPH_MAX_RECORDINGS", text)
    assert environment.number("max_recordings", 64) == 64
    assert "PYGRAPH_MAX_RECORDINGS" in caplog.text


def test_good_number_is_taken(monkeypatch):
    monkeypatch.setenv("PYGRAPH_MAX_RECORDINGS", " 7 ")
    assert environment.number("max_recordings", 64) == 7


@pytest.mark.parametrize("text, value", [("0", 0.0), (" 0.25 ", 0.25), ("1", 1.0), ("5e-2", 0.05)])
def test_good_fraction_is_taken(monkeypatch, text, value):
    monkeypatch.setenv("PYGRAPH_MIN_GAIN", text)
    assert environment.fraction("min_gain", 0.02) == value


@pytest.mark.parametrize("text", ["-0.1", "1.5", "nan", "2%", ""])
def test_bad_fraction_keeps_the_default_and_is_named(monkeypatch, caplog, text):
    monkeypatch.setenv("PYGRAPH_MIN_GAIN", text)
    assert environment.fraction("min_gain", 0.02) == 0.02
    assert "PYGRAPH_MIN_GAIN" in caplog.text


def test_word_of_a_few_is_taken_and_another_is_not(monkeypatch, caplog):
    monkeypatch.setenv("PYGRAPH_ENGINE", "copy")
    assert environment.word("engine", "auto") == "copy"
    monkeypatch.setenv("PYGRAPH_ENGINE", "magic")
    assert environment.word("engine", "auto") == "auto"
    assert "auto, patch, indirect, copy" in caplog.text


def test_misspelt_variable_is_named_with_the_nearest_knob(monkeypatch, caplog):
    monkeypatch.setenv("PYGRAPH_MAX_RECORDING", "7")
    assert environment.warn_about_unknown(config.get_config_copy()) == ["PYGRAPH_MAX_RECORDING"]
    [record] = caplog.records
    assert "PYGRAPH_MAX_RECORDINGS" in record.getMessage()


def test_known_variables_are_not_warned_about(monkeypatch, caplog):
    monkeypatch.setenv("PYGRAPH_SIMULATE", "1")
    assert environment.warn_about_unknown(config.get_config_copy()) == []
    assert not caplog.records


def test_every_knob_has_a_comment_and_a_default():
    import inspect

    lines = inspect.getsource(config).splitlines()
    for knob in config.get_config_copy():
        [position] = [number for number, line in enumerate(lines) if line.startswith(f"{knob}: ")]
        assert lines[position - 1].startswith("# ")


def test_knobs_are_patched_and_put_back():
    before = settings.current()
    with config.patch(strict=True, engine="copy"):
        assert settings.current() == replace(before, engine="copy", strict=True)
    assert settings.current() == before


def test_defaults_of_settings_are_those_of_the_knobs():
    shipped = defaults()
    for name, value in vars(settings.Settings()).items():
        assert shipped[name] == value


def test_word_that_a_knob_does_not_know_counts_as_the_default_with_one_warning(caplog):
    with config.patch(engine="patches", graph_manager="forest"):
        for _ in range(2):
            assert settings.current().engine == "auto"
            assert settings.graph_manager() == "borrowed"
    assert len(caplog.records) == 2
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_settings_travel_to_a_thread_that_does_not_see_the_assignment():
    """From torch 2.12 on an override of a knob belongs to the thread that made it."""
    from pygraph_inductor.seams.compilation import current, from_knobs, going_on

    seen = []
    with config.patch(strict=True):
        compilation = from_knobs()

    def work():
        with going_on(compilation):
            seen.append(current().settings.strict)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
