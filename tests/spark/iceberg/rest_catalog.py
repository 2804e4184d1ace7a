"""An Iceberg catalog of type rest: the servlet of Iceberg's own tests, over SQLite, on loopback.

Its JVM isn't Spark's: the JAR for Spark has Iceberg's classes under changed names.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, JavaObject, launch_gateway

from tests.support.processes import PATIENCE_S

_WANTED = Path(__file__).with_suffix(".xml")
_SETTINGS = Path(__file__).parents[2] / "support" / "ivysettings.xml"
_SPARKS_JARS = Path(pyspark.__file__).parent / "jars"


@contextmanager
def rest_catalog(directory: Path) -> Iterator[str]:
    """The address of a catalog whose tables are below ``directory``."""
    port, process = launch_gateway(
        jarpath=_jar_of_spark("py4j"), classpath=_classpath(), die_on_exit=True, return_proc=True
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        server = _server(gateway, directory)
        yield f"http://127.0.0.1:{server.getConnectors()[0].getLocalPort()}"
    finally:
        gateway.close()
        process.stdin.close()
        process.wait(PATIENCE_S)


def _server(gateway: JavaGateway, directory: Path) -> JavaObject:
    jvm = gateway.jvm
    catalog = jvm.org.apache.iceberg.CatalogUtil.loadCatalog(
        "org.apache.iceberg.jdbc.JdbcCatalog",
        "tables",
        {
            "uri": f"jdbc:sqlite:{directory / 'catalog.db'}",
            "jdbc.schema-version": "V1",
            "warehouse": str(directory / "tables"),
        },
        jvm.org.apache.hadoop.conf.Configuration(),
    )
    rest = jvm.org.apache.iceberg.rest
    context = jvm.org.eclipse.jetty.ee10.servlet.ServletContextHandler()
    servlet = rest.RESTCatalogServlet(rest.RESTCatalogAdapter(catalog))
    context.addServlet(jvm.org.eclipse.jetty.ee10.servlet.ServletHolder(servlet), "/*")
    server = jvm.org.eclipse.jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
    server.setHandler(context)
    server.start()
    return server


def _classpath() -> str:
    """The JARs, from Maven Central by Spark's own Ivy; kept in the virtual environment."""
    jars = Path(sys.prefix, "rest-catalog")
    pattern = jars / "[artifact]-[revision](-[classifier]).[ext]"
    settings = ["-settings", _SETTINGS, "-cache", Path(sys.prefix, "ivy", "cache")]
    wanted = ["-ivy", _WANTED, "-retrieve", pattern, "-sync"]
    subprocess.run(["java", "-jar", _jar_of_spark("ivy"), *settings, *wanted], check=True)
    hadoop = [_jar_of_spark("hadoop-client-api"), _jar_of_spark("hadoop-client-runtime")]
    return ":".join([f"{jars}/*", *hadoop])


def _jar_of_spark(name: str) -> str:
    (jar,) = _SPARKS_JARS.glob(f"{name}-[0-9]*.jar")
    return str(jar)
