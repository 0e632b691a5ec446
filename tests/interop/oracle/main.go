// Command oracle answers questions about custom resources with the code of the real k8s.io/apiextensions-apiserver, and
// writes the cases, with answers, that Narthex' unit tests compare with.
//
//	oracle answer < cases > cases-with-answers      one JSON object a line; the answer becomes the field "answer"
//	oracle generate -op object -seed 1 -count 1000  writes random cases without answers
//	oracle files -root ../../..                     writes the checked-in files: go run . files
//	oracle files -root ../../.. -check              says whether the checked-in files are what it would write
//
// The checked-in files are crates/kubeapi/src/schema/testdata/{objects,structural,patterns,formats}.jsonl,
// src/resources/testdata/{definitions,custom_tables}.jsonl and src/openapi/testdata/custom_schemas.jsonl. A line is a
// case:
//
//	{"op":…, …, "answer":{…}}
//
// A field that is empty is absent. The operations, their fields, and their answers:
//
// # op "object": what the handler of a custom resource does with an object
//
//	schema                 openAPIV3Schema of the version. The kind is always Case, the apiVersion a.io/v1
//	object                 the object of the request; with "stored", the object as the store has it
//	old                    the object in the store: the request is an update
//	namespaced             the scope is Namespaced
//	status                 the status subresource is enabled
//	subresource            "status": the request writes the subresource (needs "status" and "old")
//	scale                  the scale subresource: {"specReplicasPath":…, "statusReplicasPath":…, "labelSelectorPath":…}
//	preserveUnknownFields  spec.preserveUnknownFields of a definition of before v1
//	stored                 read from the store: malformed metadata is dropped, generation 0 becomes 1, no validation
//
// answer:
//
//	schemaError   the schema has no structural form; nothing else is answered
//	decodeError   the request fails with 400 (a stored object cannot be read) and this text; nothing else is answered
//	strict        errors of strict field validation (duplicate and unknown fields), in order
//	pruned        the object without unknown fields and forbidden nulls, its metadata coerced; absent if equal to "object"
//	defaulted     "pruned" with defaults; absent if equal to "pruned"
//	prepared      "defaulted" after the strategy's PrepareFor{Create,Update}, without metadata; only with "status"
//	errors        of validation. "from" is the step: meta, schema, scale, embedded, list. Any other error has none
//	unordered     upstream's order differs between runs (it walks Go maps); "errors" is sorted by text
//	warnings      texts of warnings, sorted
//
// An error is {"type","field","value","detail","text","from"}: type is the reason of the cause in a Status, value the
// rejected value as JSON (absent if upstream prints none), text the whole text as upstream prints it. The checked-in files have no value
// and no detail.
//
// # op "structural": a schema alone
//
//	schema   openAPIV3Schema
//
// answer:
//
//	conversionError   the schema has no structural form
//	structural        errors of the structural rules, sorted; paths relative to the schema, which is "schema" itself
//	definition        all errors of a definition with one version with this schema, as of op "definition"
//	unordered         as above, for "definition"
//
// # op "definition": a CustomResourceDefinition in v1
//
//	definition   the object of the request
//	old          the object in the store: the request is an update
//	show         answer "prepared", too
//	stored       read from the store, in v1 or v1beta1, without validation; answers "prepared"
//
// answer: decodeError, strict, errors, unordered, warnings as above; prepared is the object that would be stored, or is
// read, in v1.
//
// # op "table": the row of an object
//
//	columns   additionalPrinterColumns; if absent, the default (Age)
//	object    the object
//	now       time of the request, RFC 3339
//
// answer: error (the columns are not usable: only the name is printed), columns (without the first, Name; absent in the checked-in files where it only
// repeats the question), cells.
//
// # op "openapi": what is published for a version of a definition
//
//	definition   a CustomResourceDefinition in v1; or
//	schema       openAPIV3Schema of a definition a.io/v1 Case
//	version      version of "definition"; if absent, the first
//	part         "schema": only the schema of the kind, without the properties apiVersion, kind and metadata of its root,
//	             which are the same in all
//
// answer: error; v3, v2: the documents, or their parts.
//
// # op "pattern": a regular expression
//
//	pattern, strings
//
// answer: error (of compilation), or matches: one boolean a string.
//
// # op "format": a format of a string or a number
//
//	format, type ("string" if absent), values
//
// answer: recognized (false: a warning, and every value is accepted), accepted: one boolean a value.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/klog/v2"
)

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(os.Stderr)
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	mode := "answer"
	if len(args) > 0 {
		mode, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("oracle "+mode, flag.ExitOnError)
	op := flags.String("op", "object", "operation of the cases")
	seed := flags.Uint64("seed", 1, "seed of the random cases")
	count := flags.Int("count", 1000, "number of random cases")
	root := flags.String("root", "../../..", "root of the repository")
	only := flags.String("only", "", "part of the names of the files")
	check := flags.Bool("check", false, "compare instead of writing; exit status 1 if a file differs")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch mode {
	case "answer":
		return answerLines()
	case "generate":
		return generateLines(*op, *seed, *count)
	case "files":
		return writeFiles(*root, *only, *check)
	}
	return fmt.Errorf("unknown mode %q: answer, generate or files", mode)
}

func answerLines() error {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	for in.Scan() {
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		line, err := answeredLine(in.Bytes())
		if err != nil {
			return err
		}
		out.Write(line)
		// A client may wait for each answer.
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return in.Err()
}

// answeredLine is a case with its answer, as a line.
func answeredLine(text []byte) ([]byte, error) {
	var asked question
	if err := json.Unmarshal(text, &asked); err != nil {
		return nil, fmt.Errorf("%w in %s", err, text)
	}
	asked.Answer = nil
	given, err := asked.answer()
	if err != nil {
		given = map[string]any{"problem": err.Error()}
	}
	if asked.Answer, err = encode(given); err != nil {
		return nil, err
	}
	line, err := encode(asked)
	return append(line, '\n'), err
}

func generateLines(op string, seed uint64, count int) error {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	generated, err := generate(op, seed, count)
	if err != nil {
		return err
	}
	for _, asked := range generated {
		line, err := encode(asked)
		if err != nil {
			return err
		}
		out.Write(append(line, '\n'))
	}
	return nil
}

func writeFiles(root, only string, check bool) error {
	different := 0
	isBrief = true
	for _, file := range files {
		if !strings.Contains(file.name, only) {
			continue
		}
		want, err := file.content()
		if err != nil {
			return fmt.Errorf("%s: %w", file.name, err)
		}
		path := filepath.Join(root, file.name)
		if !check {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, want, 0o644); err != nil {
				return err
			}
			fmt.Printf("%s: %d cases, %d bytes\n", file.name, bytes.Count(want, []byte("\n")), len(want))
			continue
		}
		have, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(have, want) {
			different++
			fmt.Printf("%s: differs\n", file.name)
		}
	}
	if different > 0 {
		return fmt.Errorf("%d of %d files are not what these modules say", different, len(files))
	}
	return nil
}

// encode is a value as JSON in one line, without escapes of HTML.
func encode(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}
