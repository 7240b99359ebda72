"""Runs the Ivy that ships inside PySpark: takes pinned coordinates, downloads files.

Ivy has the address of the public repository built in; a mirror replaces it.
"""

from __future__ import annotations

import re
import subprocess
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ematix_flow.engine.jvm.java_process import spark_home
from ematix_flow.engine.jvm.java_runtime import find_java

LONGEST_SECONDS = 30 * 60
_ARRIVED = re.compile(r"\[SUCCESSFUL \] [^#]+#([^;]+);")
_COMPLAINT = re.compile(
    r"^\s*(?::: |WARN: |ERROR: )?(.*(?:not found|Server access error|FAILED|timed out).*)$"
)


def retrieve(
    coordinates: Sequence[tuple[str, str, str]],
    folder: Path,
    env: Mapping[str, str],
    arrived: Callable[[str], None],
) -> str | None:
    """Download each (group, name, version) as ``name-version.jar`` into ``folder``.

    Returns Ivy's complaint, if any.
    """
    request = folder / "ivy.xml"
    _write(_request(coordinates), request)
    command = [str(find_java(env).executable), "-cp", str(spark_home() / "jars" / "*"), "org.apache.ivy.Main"]
    settings = settings_file(env, folder)
    if settings is not None:
        command += ["-settings", str(settings)]
    command += ["-cache", str(folder / "cache"), "-ivy", str(request)]
    command += ["-retrieve", str(folder / "[artifact]-[revision].[ext]")]
    complaint = None
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=dict(env)
    ) as process:
        watchdog = threading.Timer(LONGEST_SECONDS, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                success = _ARRIVED.search(line)
                if success:
                    arrived(success[1])
                elif complaint is None:
                    match = _COMPLAINT.match(line)
                    complaint = " ".join(match[1].split()) if match else None
        except BaseException:  # Ctrl-C, or the progress callback failed
            process.kill()
            raise
        finally:
            watchdog.cancel()
    return complaint if process.returncode else None


def settings_file(env: Mapping[str, str], folder: Path) -> Path | None:
    """Ivy's settings for the user's mirror; None without a mirror."""
    given = env.get("EMATIX_FLOW_IVY_SETTINGS")
    if given:
        return Path(given).expanduser()
    root = env.get("DEFAULT_ARTIFACT_REPOSITORY") or maven_mirror(env)
    if not root:
        return None
    settings = folder / "ivysettings.xml"
    _write(_mirror_settings(root), settings)
    return settings


def maven_mirror(env: Mapping[str, str]) -> str | None:
    """The mirror of the central repository in Maven's settings."""
    home = env.get("HOME") or env.get("USERPROFILE")
    file = Path(home) / ".m2" / "settings.xml" if home else None
    if file is None or not file.is_file():
        return None
    try:
        root = ET.parse(file).getroot()
    except ET.ParseError:
        return None
    for mirror in (element for element in root.iter() if _local_name(element) == "mirror"):
        fields = {_local_name(child): (child.text or "").strip() for child in mirror}
        mirrored = {name.strip() for name in fields.get("mirrorOf", "").split(",")}
        if mirrored & {"*", "central", "external:*"} and "!central" not in mirrored and fields.get("url"):
            return fields["url"]
    return None


def _request(coordinates: Sequence[tuple[str, str, str]]) -> ET.Element:
    module = ET.Element("ivy-module", version="2.0")
    ET.SubElement(module, "info", organisation="ematix-flow", module="jars")
    ET.SubElement(ET.SubElement(module, "configurations"), "conf", name="default")
    dependencies = ET.SubElement(module, "dependencies")
    for group, name, version in coordinates:
        exact = {"org": group, "name": name, "rev": version, "transitive": "false", "conf": "default->master"}
        ET.SubElement(dependencies, "dependency", exact)
    return module


def _mirror_settings(root: str) -> ET.Element:
    settings = ET.Element("ivysettings")
    ET.SubElement(settings, "settings", defaultResolver="mirror")
    resolvers = ET.SubElement(settings, "resolvers")
    ET.SubElement(resolvers, "ibiblio", name="mirror", m2compatible="true", root=root)
    return settings


def _local_name(element: ET.Element) -> str:
    return element.tag.rsplit("}", 1)[-1]


def _write(element: ET.Element, path: Path) -> None:
    ET.ElementTree(element).write(path, encoding="utf-8", xml_declaration=True)
