// The OpenTelemetry collector, with its receiver of OTLP and an exporter that appends traces to a file, one line of
// OTLP/JSON for each batch. The only argument is the configuration file.
package main

import (
	"context"
	"log"
	"os"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

type fileConfig struct {
	Path string `mapstructure:"path"`
}

type fileExporter struct {
	component.StartFunc
	component.ShutdownFunc
	path string
}

func (*fileExporter) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{}
}

func (e *fileExporter) ConsumeTraces(_ context.Context, traces ptrace.Traces) error {
	line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(e.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Write(append(line, '\n'))
	return err
}

func newTraces(_ context.Context, _ exporter.Settings, config component.Config) (exporter.Traces, error) {
	return &fileExporter{path: config.(*fileConfig).Path}, nil
}

func factories() (otelcol.Factories, error) {
	receivers, err := otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	file := exporter.NewFactory(
		component.MustNewType("file"),
		func() component.Config { return &fileConfig{} },
		exporter.WithTraces(newTraces, component.StabilityLevelDevelopment),
	)
	exporters, err := otelcol.MakeFactoryMap[exporter.Factory](file)
	if err != nil {
		return otelcol.Factories{}, err
	}
	return otelcol.Factories{
		Receivers: receivers,
		Exporters: exporters,
		Telemetry: otelconftelemetry.NewFactory(),
	}, nil
}

func main() {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otel-collector", Version: "interop"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				DefaultScheme:     "file",
				ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
			},
		},
	}
	command := otelcol.NewCommand(settings)
	command.SetArgs([]string{"--config=file:" + os.Args[1]})
	if err := command.Execute(); err != nil {
		log.Fatal(err)
	}
}
