package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
)

// file is a checked-in file of cases with answers.
type file struct {
	name string
	// parts are the cases, in order: hand-written ones, then random ones.
	parts []func() ([]question, error)
	// size is where the file ends at the latest, in bytes.
	size int
}

func random(op string, seed uint64, count int) func() ([]question, error) {
	return func() ([]question, error) { return generate(op, seed, count) }
}

// tables are the hand-written cases of a function that makes random ones, too.
func tables(cases func(*generator) []question) func() ([]question, error) {
	return func() ([]question, error) { return cases(nil), nil }
}

var files = []file{
	{"crates/kubeapi/src/schema/testdata/objects.jsonl", []func() ([]question, error){objectTables, random("object", 18, 2600)}, 1_500_000},
	{"crates/kubeapi/src/schema/testdata/structural.jsonl", []func() ([]question, error){structuralTables, random("structural", 18, 1500)}, 1_400_000},
	{"crates/kubeapi/src/schema/testdata/patterns.jsonl", []func() ([]question, error){tables(patternCases), random("pattern", 18, 1500)}, 1_000_000},
	{"crates/kubeapi/src/schema/testdata/formats.jsonl", []func() ([]question, error){tables(formatCases), random("format", 18, 400)}, 600_000},
	{"src/resources/testdata/definitions.jsonl", []func() ([]question, error){definitionCases, random("definition", 18, 1000)}, 1_400_000},
	{"src/resources/testdata/custom_tables.jsonl", []func() ([]question, error){tables(tableCases), random("table", 18, 500)}, 900_000},
	{"src/openapi/testdata/custom_schemas.jsonl", []func() ([]question, error){publishedTables, random("openapi", 18, 150)}, 400_000},
}

func (f file) content() ([]byte, error) {
	var out bytes.Buffer
	for part, cases := range f.parts {
		cases, err := cases()
		if err != nil {
			return nil, err
		}
		for _, asked := range cases {
			answer, err := asked.answer()
			var unstable unstableError
			var panicked panicError
			if errors.As(err, &unstable) || errors.As(err, &panicked) {
				// Upstream itself gives several answers, or none.
				if part == 0 {
					text, _ := encode(asked)
					fmt.Fprintf(os.Stderr, "%s: left out: %v in %s\n", f.name, err, text)
				}
				continue
			}
			if err != nil {
				text, _ := encode(asked)
				return nil, fmt.Errorf("%w in %s", err, text)
			}
			if asked.Answer, err = encode(answer); err != nil {
				return nil, err
			}
			line, err := encode(asked)
			if err != nil {
				return nil, err
			}
			if out.Len()+len(line) < f.size {
				out.Write(append(line, '\n'))
			}
		}
	}
	return out.Bytes(), nil
}

// generate is a number of random cases of an operation.
func generate(op string, seed uint64, count int) ([]question, error) {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 36))}
	var one func() question
	var queue []question
	next := func(more func(*generator) []question) func() question {
		return func() question {
			if len(queue) == 0 {
				queue = more(g)
			}
			first := queue[0]
			queue = queue[1:]
			return first
		}
	}
	switch op {
	case "definition":
		one = g.definitionCase
	case "openapi":
		one = g.publishedCase
	case "table":
		one = next(tableCases)
	case "pattern":
		one = next(patternCases)
	case "format":
		one = next(formatCases)
	case "object":
		one = g.objectCase
	case "structural":
		one = g.structuralCase
	default:
		return nil, fmt.Errorf("no generator for op %q", op)
	}
	cases := make([]question, 0, count)
	for len(cases) < count {
		cases = append(cases, one())
	}
	return cases, nil
}

// tree is a JSON object under construction.
type tree = map[string]any

type generator struct {
	*rand.Rand
	// depth of the schema under construction.
	depth int
}

// chance is true in one of n cases.
func (g *generator) chance(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

// keyOf is a random key of a tree.
func keyOf(g *generator, of tree) string {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys[g.IntN(len(keys))]
}

func sortedKeys(of tree) []string {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func raw(value any) json.RawMessage {
	text, err := encode(value)
	if err != nil {
		panic(err)
	}
	return text
}

// copied is a deep copy of JSON. Numbers that are whole stay whole.
func copied(value any) any {
	switch value := value.(type) {
	case tree:
		other := tree{}
		for key, inner := range value {
			other[key] = copied(inner)
		}
		return other
	case []any:
		other := make([]any, 0, len(value))
		for _, inner := range value {
			other = append(other, copied(inner))
		}
		return other
	}
	return value
}
