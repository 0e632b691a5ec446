// Command kinds writes what Narthex has to know of Kubernetes' built-in kinds, and the cases that its tests compare
// with: resources, columns and OpenAPI definitions as a running kube-apiserver has them, messages by reflection over the
// Go types.
//
//	go run . --kubeconfig FILE --root ../../..            writes the files
//	go run . --kubeconfig FILE --root ../../.. --check    says whether the files are what it would write
//	go run . --validation --root ../../..                writes src/kinds/testdata/validation, without a kube-apiserver
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	kindsFile     = "src/resources/builtin/kinds.json"
	protobufFile  = "src/resources/builtin/testdata/objects.jsonl"
	defaultsFile  = "src/resources/builtin/testdata/defaults.jsonl"
	strictFile    = "src/resources/builtin/testdata/strict.jsonl"
	openapiFile   = "src/openapi/builtin/definitions.json.gz"
	bootstrapFile = "src/controllers/bootstrap_objects.jsonl"
	policyFile    = "src/controllers/bootstrap_policy.jsonl"
	tablesFile    = "src/kinds/testdata/tables.jsonl"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of a cluster admin of a kube-apiserver")
	root := flag.String("root", "../../..", "root of the repository")
	check := flag.Bool("check", false, "compare instead of writing; exit status 1 if a file differs")
	tables := flag.Bool("tables", false, "also create objects in the kube-apiserver and write the Tables it prints")
	validation := flag.Bool("validation", false, "write only what the strategies of the kinds make of the objects in the folder objects")
	flag.Parse()
	if *validation {
		if err := writeValidation(*root); err != nil {
			fmt.Fprintln(os.Stderr, "kinds:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(*kubeconfig, *root, *check, *tables); err != nil {
		fmt.Fprintln(os.Stderr, "kinds:", err)
		os.Exit(1)
	}
}

func run(kubeconfig, root string, check, tables bool) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	server := &server{client: client, host: config.Host}
	ctx := context.Background()

	files := map[string][]byte{}
	if files[kindsFile], err = kinds(ctx, server); err != nil {
		return err
	}
	if files[openapiFile], err = definitions(ctx, server); err != nil {
		return err
	}
	if files[protobufFile], err = objectCases(); err != nil {
		return err
	}
	if files[defaultsFile], err = defaultCases(); err != nil {
		return err
	}
	if files[bootstrapFile], err = bootstrapObjects(); err != nil {
		return err
	}
	if files[policyFile], err = bootstrapPolicy(); err != nil {
		return err
	}
	if files[strictFile], err = strictCases(); err != nil {
		return err
	}
	// Ages differ in each run, so these are never compared.
	if tables && !check {
		if files[tablesFile], err = tableCases(ctx, server); err != nil {
			return err
		}
	}
	different := 0
	for name, want := range files {
		path := filepath.Join(root, name)
		if !check {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, want, 0o644); err != nil {
				return err
			}
			fmt.Printf("%s: %d bytes\n", name, len(want))
			continue
		}
		have, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, ".gz") {
			// Compressed bytes depend on the compressor.
			if have, err = plain(have); err != nil {
				return err
			}
			if want, err = plain(want); err != nil {
				return err
			}
		}
		if !bytes.Equal(have, want) {
			different++
			fmt.Printf("%s: %s\n", name, firstDifference(have, want))
		}
	}
	if different > 0 {
		return fmt.Errorf("%d of %d files are not what this kube-apiserver and these modules say", different, len(files))
	}
	return nil
}

func writeValidation(root string) error {
	files, err := validationCases(filepath.Join(root, "tests/interop/kinds/objects"))
	if err != nil {
		return err
	}
	if files[autoscalersFile], err = autoscalerCases(); err != nil {
		return err
	}
	files[internalStructsFile] = internalStructs()
	if files[policyFile], err = bootstrapPolicy(); err != nil {
		return err
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, files[name], 0o644); err != nil {
			return err
		}
		fmt.Printf("%s: %d bytes, %d lines\n", name, len(files[name]), bytes.Count(files[name], []byte("\n")))
	}
	return nil
}

func firstDifference(have, want []byte) string {
	haveLines, wantLines := bytes.Split(have, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(haveLines), len(wantLines)) {
		if !bytes.Equal(haveLines[i], wantLines[i]) {
			return fmt.Sprintf("line %d is\n  %s\nand should be\n  %s", i+1, haveLines[i], wantLines[i])
		}
	}
	return fmt.Sprintf("%d lines, and should have %d", len(haveLines), len(wantLines))
}

// writeLine appends a value as one line of JSON.
func writeLine(out *bytes.Buffer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}
