package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
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
	{"src/schema/testdata/objects.jsonl", []func() ([]question, error){objectTables, random("object", 18, 2600)}, 1_500_000},
	{"src/schema/testdata/structural.jsonl", []func() ([]question, error){structuralTables, random("structural", 18, 1500)}, 1_400_000},
	{"src/schema/testdata/patterns.jsonl", []func() ([]question, error){tables(patternCases), random("pattern", 18, 1500)}, 1_000_000},
	{"src/schema/testdata/formats.jsonl", []func() ([]question, error){tables(formatCases), random("format", 18, 400)}, 600_000},
	{"src/resources/testdata/definitions.jsonl", []func() ([]question, error){definitionCases, random("definition", 18, 1000)}, 1_400_000},
	{"src/resources/testdata/custom_tables.jsonl", []func() ([]question, error){tables(tableCases), random("table", 18, 500)}, 900_000},
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

func (g *generator) objectCase() question {
	for {
		g.depth = 0
		asked := question{Op: "object"}
		root := g.rootSchema()
		if g.chance(12) {
			asked.Status = true
			root["properties"].(tree)["status"] = g.object()
		}
		if g.chance(40) {
			asked.PreserveUnknownFields = true
			g.damageSchema(root)
		}
		asked.Schema = raw(root)
		if !asked.PreserveUnknownFields && !isAccepted(asked.Schema) {
			continue
		}
		object := g.root(root)
		switch g.IntN(8) {
		case 0:
		case 1, 2, 3:
			g.damage(object, 1)
		case 4, 5:
			g.damage(object, 1+g.IntN(3))
		default:
			// An update, half of them of an object that was damaged before.
			old := copied(object).(tree)
			if g.chance(2) {
				g.damage(old, 1+g.IntN(3))
				object = copied(old).(tree)
			}
			if !g.chance(6) {
				g.damage(object, 1)
			}
			asked.Old = raw(old)
			if asked.Status && g.chance(2) {
				asked.Subresource = "status"
			}
		}
		asked.Object = raw(object)
		if len(asked.Old) == 0 && g.chance(25) {
			asked.Stored = true
		}
		if len(asked.Schema) > 600 || len(asked.Object) > 400 {
			continue
		}
		answer, err := asked.answer()
		if err != nil {
			continue
		}
		// Most objects that simply fit say little.
		if given, isObject := answer.(*objectAnswer); isObject && given.isPlain() && !g.chance(6) {
			continue
		}
		return asked
	}
}

func (a *objectAnswer) isPlain() bool {
	return a.DecodeError == "" && len(a.Strict) == 0 && a.Pruned == nil && a.Defaulted == nil && len(a.Errors) == 0
}

// isAccepted says whether a definition with a schema can be created.
func isAccepted(schema json.RawMessage) bool {
	asked := question{Definition: definitionOf(schema)}
	answer, err := asked.definitionAnswer()
	return err == nil && answer.DecodeError == "" && len(answer.Errors) == 0
}

func (g *generator) rootSchema() tree {
	root := tree{"type": "object", "properties": tree{}}
	properties := root["properties"].(tree)
	for range 1 + g.IntN(3) {
		properties[g.fieldName()] = g.schema()
	}
	if g.chance(8) {
		root["required"] = []any{keyOf(g, properties)}
	}
	if g.chance(12) {
		properties["metadata"] = pick(g,
			tree{"type": "object"},
			tree{"type": "object", "properties": tree{"name": tree{"type": "string", "maxLength": 3}}},
			tree{"type": "object", "properties": tree{"name": tree{"type": "string", "pattern": "^b"}}})
	}
	if g.chance(12) {
		properties["kind"] = tree{"type": "string"}
		properties["apiVersion"] = tree{"type": "string", "minLength": 1}
	}
	if g.chance(20) {
		root["x-kubernetes-preserve-unknown-fields"] = true
	}
	if g.chance(10) {
		g.combine(root)
	}
	return root
}

func (g *generator) fieldName() string {
	return pick(g, "a", "b", "c", "d", "spec", "items", "list", "x-y", "a.b", "ä")
}

// schema is a random schema that is structural in most cases.
func (g *generator) schema() tree {
	g.depth++
	defer func() { g.depth-- }()
	var s tree
	kind := g.IntN(20)
	if g.depth > 3 {
		kind = 10 + g.IntN(10)
	}
	switch {
	case kind < 5:
		s = g.object()
	case kind < 6:
		s = g.mapOf()
	case kind < 9:
		s = g.array()
	case kind < 10:
		s = g.embedded()
	case kind < 14:
		s = g.text()
	case kind < 16:
		s = g.number("integer")
	case kind < 17:
		s = g.number("number")
	case kind < 18:
		s = tree{"type": "boolean"}
	case kind < 19:
		s = tree{"x-kubernetes-int-or-string": true}
		if g.chance(2) {
			s["anyOf"] = []any{tree{"type": "integer"}, tree{"type": "string"}}
		}
		if g.chance(4) {
			s["pattern"] = "^[0-9]+%?$"
		}
		if g.chance(4) {
			s["maximum"] = 100
		}
	default:
		s = tree{"x-kubernetes-preserve-unknown-fields": true}
		if g.chance(2) {
			s["type"] = "object"
		}
	}
	if g.chance(6) {
		s["nullable"] = true
	}
	if g.chance(7) {
		g.combine(s)
	}
	if g.chance(14) {
		s["enum"] = []any{g.value(s), g.value(s)}
	}
	if g.chance(5) {
		s["default"] = g.value(s)
		if g.chance(10) && s["nullable"] == true {
			s["default"] = nil
		}
	}
	return s
}

func (g *generator) object() tree {
	properties := tree{}
	for range 1 + g.IntN(3) {
		properties[g.fieldName()] = g.schema()
	}
	s := tree{"type": "object", "properties": properties}
	if g.chance(3) {
		s["required"] = []any{keyOf(g, properties)}
	}
	if g.chance(10) {
		s["x-kubernetes-preserve-unknown-fields"] = true
	}
	if g.chance(12) {
		s["minProperties"] = 1 + g.IntN(2)
	}
	if g.chance(12) {
		s["maxProperties"] = 1 + g.IntN(2)
	}
	if g.chance(12) {
		s["x-kubernetes-map-type"] = pick(g, "atomic", "granular")
	}
	return s
}

func (g *generator) mapOf() tree {
	s := tree{"type": "object"}
	if g.chance(8) {
		s["additionalProperties"] = true
		if g.chance(3) {
			s["properties"] = tree{g.fieldName(): g.schema()}
		}
		return s
	}
	s["additionalProperties"] = g.schema()
	if g.chance(8) {
		s["maxProperties"] = 1
	}
	return s
}

func (g *generator) array() tree {
	s := tree{"type": "array"}
	switch g.IntN(5) {
	case 0:
		s["x-kubernetes-list-type"] = "set"
		item := pick(g, tree{"type": "string"}, tree{"type": "integer"}, tree{"type": "number"}, tree{"type": "boolean"},
			tree{"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": tree{"type": "string"}},
			tree{"type": "array", "x-kubernetes-list-type": "atomic", "items": tree{"type": "integer"}},
			tree{"x-kubernetes-int-or-string": true})
		s["items"] = copied(item)
	case 1, 2:
		s["x-kubernetes-list-type"] = "map"
		item := tree{"type": "object", "properties": tree{
			"name": pick(g, tree{"type": "string"}, tree{"type": "integer"}, tree{"type": "string", "maxLength": 3}),
			"v":    g.schema(),
		}}
		keys := []any{"name"}
		required := []any{"name"}
		if g.chance(2) {
			port := tree{"type": "integer"}
			if g.chance(2) {
				port["default"] = 80
			} else {
				required = append(required, "port")
			}
			item["properties"].(tree)["port"] = port
			keys = append(keys, "port")
		}
		item["required"] = required
		s["x-kubernetes-list-map-keys"] = keys
		s["items"] = item
	case 3:
		s["x-kubernetes-list-type"] = "atomic"
		s["items"] = g.schema()
	default:
		s["items"] = g.schema()
	}
	if g.chance(8) {
		s["minItems"] = 1 + g.IntN(2)
	}
	if g.chance(8) {
		s["maxItems"] = 1 + g.IntN(2)
	}
	return s
}

func (g *generator) embedded() tree {
	s := tree{"type": "object", "x-kubernetes-embedded-resource": true}
	if g.chance(2) {
		s["x-kubernetes-preserve-unknown-fields"] = true
	}
	if s["x-kubernetes-preserve-unknown-fields"] == nil || g.chance(2) {
		s["properties"] = tree{g.fieldName(): g.schema()}
	}
	return s
}

var patterns = []string{"^a", "b$", "^[a-z]+$", "[0-9]{2,3}", "a|b", "^$", `\d`, `^\S+$`, "(?i)AB", "[[:alpha:]]", `\p{L}`}

var stringFormats = []string{
	"bsonobjectid", "uri", "email", "hostname", "ipv4", "ipv6", "cidr", "mac", "uuid", "uuid3", "uuid4", "uuid5", "isbn", "isbn10",
	"isbn13", "creditcard", "ssn", "hexcolor", "rgbcolor", "byte", "password", "date", "duration", "datetime", "date-time",
	"k8s-short-name", "k8s-long-name",
}

func (g *generator) text() tree {
	s := tree{"type": "string"}
	switch g.IntN(9) {
	case 0:
		s["pattern"] = pick(g, patterns...)
	case 1:
		s["format"] = pick(g, stringFormats...)
	case 2:
		s["minLength"] = g.IntN(4)
	case 3:
		s["maxLength"] = g.IntN(4)
	case 4:
		s["enum"] = []any{"a", "b", "ab"}
	case 5:
		s["format"] = pick(g, "unknown", "int32", "date_time")
	}
	return s
}

func (g *generator) number(kind string) tree {
	s := tree{"type": kind}
	switch g.IntN(8) {
	case 0:
		s["minimum"] = pick[any](g, 0, 1, -1, 10, 0.5, 1e21, -9007199254740993)
	case 1:
		s["maximum"] = pick[any](g, 0, 1, 10, 100, 2.5, 1e6, 9007199254740993)
	case 2:
		s["minimum"], s["exclusiveMinimum"] = pick[any](g, 0, 1, 1.5), true
	case 3:
		s["maximum"], s["exclusiveMaximum"] = pick[any](g, 1, 10, 1.5), true
	case 4:
		s["multipleOf"] = pick[any](g, 2, 3, 10, 0.5, 0.1, 1e-3)
	case 5:
		s["format"] = pick(g, "int32", "int64", "float", "double")
	case 6:
		s["enum"] = []any{1, 2, 10}
	}
	return s
}

// combine adds allOf, anyOf, oneOf or not.
func (g *generator) combine(s tree) {
	switch junctor := pick(g, "allOf", "anyOf", "oneOf", "not"); junctor {
	case "not":
		s["not"] = g.restriction(s)
	default:
		if s[junctor] != nil {
			return
		}
		list := []any{g.restriction(s)}
		for g.chance(2) {
			list = append(list, g.restriction(s))
		}
		s[junctor] = list
	}
}

// restriction is a schema that only validates, for use below a junctor.
func (g *generator) restriction(of tree) tree {
	s := tree{}
	switch of["type"] {
	case "object":
		properties, _ := of["properties"].(tree)
		if len(properties) > 0 {
			name := keyOf(g, properties)
			if g.chance(2) {
				s["required"] = []any{name}
			}
			if inner, isTree := properties[name].(tree); isTree && g.chance(2) {
				s["properties"] = tree{name: g.restriction(inner)}
			}
		}
		if g.chance(4) {
			s[pick(g, "minProperties", "maxProperties")] = 1
		}
	case "array":
		s[pick(g, "minItems", "maxItems")] = 1 + g.IntN(2)
		if inner, isTree := of["items"].(tree); isTree && g.chance(3) {
			s["items"] = g.restriction(inner)
		}
	case "string":
		switch g.IntN(4) {
		case 0:
			s["pattern"] = pick(g, patterns...)
		case 1:
			s["enum"] = []any{g.word(), g.word()}
		case 2:
			s["format"] = pick(g, stringFormats...)
		default:
			s[pick(g, "minLength", "maxLength")] = g.IntN(4)
		}
	case "integer", "number":
		switch g.IntN(3) {
		case 0:
			s["multipleOf"] = pick(g, 2, 3)
		case 1:
			s["enum"] = []any{1, 2}
		default:
			s[pick(g, "minimum", "maximum")] = g.IntN(10)
		}
	default:
		s["enum"] = []any{g.value(of)}
	}
	if g.chance(12) {
		s["not"] = g.restriction(of)
	}
	return s
}

func (g *generator) word() string {
	return pick(g, "a", "b", "ab", "abc", "abcd", "", "A", "12", "a b", "ä", "日本", "a\"b", "10%", "x.y", "a\nb", "<&>")
}

var formatted = map[string][]string{
	"bsonobjectid": {"507f1f77bcf86cd799439011", "507f1f77bcf86cd79943901"},
	"uri":          {"http://a.io/x?y#z", "/x", "x", "a:b", ""},
	"email":        {"a@b.io", "a", "A <a@b>"},
	"hostname":     {"a.io", "-a", "a_b", "a..b", "1.2.3.4"},
	"ipv4":         {"1.2.3.4", "1.2.3", "01.2.3.4", "::1"},
	"ipv6":         {"::1", "1.2.3.4", "::ffff:1.2.3.4", "fe80::1%eth0"},
	"cidr":         {"10.0.0.0/8", "10.0.0.0", "::/0", "10.0.0.0/33"},
	"mac":          {"01:23:45:67:89:ab", "01-23-45-67-89-ab", "0123.4567.89ab", "01"},
	"uuid":         {"a8098c1a-f86e-11da-bd1a-00112444be1e", "a8098c1af86e11dabd1a00112444be1e", "a"},
	"byte":         {"YWI=", "YWI", "a b", ""},
	"date":         {"2020-02-29", "2021-02-29", "2020-2-1"},
	"duration":     {"1h", "22 ns", "1 day", "1", "-1.5h"},
	"datetime":     {"2014-12-15T19:30:20.000Z", "2014-12-15", "2014-12-15t19:30:20z"},
	"date-time":    {"2014-12-15T19:30:20Z", "2014-12-15T19:30:20+02:00", "2014-12-15 19:30:20"},
}

// value is a value that fits a schema, mostly.
func (g *generator) value(s tree) any {
	if s["nullable"] == true && g.chance(6) {
		return nil
	}
	if values, _ := s["enum"].([]any); len(values) > 0 && !g.chance(6) {
		return copied(values[g.IntN(len(values))])
	}
	if s["x-kubernetes-int-or-string"] == true {
		return pick[any](g, 5, "a", "50%", 200, "7")
	}
	switch s["type"] {
	case "object":
		return g.objectOf(s)
	case "array":
		list := []any{}
		items, _ := s["items"].(tree)
		for range g.IntN(4) {
			list = append(list, g.value(items))
		}
		return list
	case "string":
		format, _ := s["format"].(string)
		if texts := formatted[format]; len(texts) > 0 && !g.chance(4) {
			return pick(g, texts...)
		}
		return g.word()
	case "integer":
		return pick[any](g, 0, 1, 2, 3, 5, 10, 80, -1, 100, int64(1)<<40, 3000000000, 7.0)
	case "number":
		return pick[any](g, 0, 1, 1.5, 2.5, 10, -0.5, 100, 1e20, 0.3, 1e-7)
	case "boolean":
		return g.chance(2)
	}
	return pick[any](g, 1, "a", true, []any{1}, tree{"a": 1, "q": tree{"r": nil}}, tree{})
}

func (g *generator) objectOf(s tree) tree {
	object := tree{}
	if s["x-kubernetes-embedded-resource"] == true {
		object["apiVersion"], object["kind"] = pick(g, "v1", "a.io/v1"), "Pod"
		if g.chance(2) {
			object["metadata"] = g.metadata()
		}
	}
	properties, _ := s["properties"].(tree)
	required, _ := s["required"].([]any)
	for _, name := range sortedKeys(properties) {
		if slices.Contains(required, any(name)) || !g.chance(3) {
			inner, _ := properties[name].(tree)
			object[name] = g.value(inner)
		}
	}
	switch values := s["additionalProperties"].(type) {
	case tree:
		for range g.IntN(3) {
			object[pick(g, "k", "l", "m.n", "")] = g.value(values)
		}
	case bool:
		object["k"] = 1
	}
	if s["x-kubernetes-preserve-unknown-fields"] == true && g.chance(2) {
		object["unknown"] = pick[any](g, 1, "a", tree{"b": nil}, []any{tree{}})
	}
	return object
}

func (g *generator) metadata() tree {
	meta := tree{"name": pick(g, "a", "b", "abcd")}
	switch g.IntN(8) {
	case 0:
		meta["labels"] = tree{"l": "v"}
	case 1:
		meta["annotations"] = tree{"l": "v", "m/n": ""}
	case 2:
		meta["finalizers"] = []any{"a.io/f"}
	}
	return meta
}

func (g *generator) root(s tree) tree {
	properties, _ := copied(s["properties"]).(tree)
	for _, name := range []string{"metadata", "kind", "apiVersion"} {
		delete(properties, name)
	}
	shape := copied(s).(tree)
	shape["properties"] = properties
	object := g.objectOf(shape)
	object["apiVersion"], object["kind"], object["metadata"] = "a.io/v1", "Case", g.metadata()
	return object
}

// place is where a value stands in a tree or a list.
type place struct {
	object tree
	key    string
	list   []any
	index  int
}

func (p place) get() any {
	if p.object != nil {
		return p.object[p.key]
	}
	return p.list[p.index]
}

func (p place) set(value any) {
	if p.object != nil {
		p.object[p.key] = value
	} else {
		p.list[p.index] = value
	}
}

func places(value any, found []place) []place {
	switch value := value.(type) {
	case tree:
		for _, key := range sortedKeys(value) {
			found = append(found, place{object: value, key: key})
			found = places(value[key], found)
		}
	case []any:
		for index := range value {
			found = append(found, place{list: value, index: index})
			found = places(value[index], found)
		}
	}
	return found
}

// damage changes an object at random places: types, nulls, missing and unknown fields, duplicates.
func (g *generator) damage(object tree, times int) {
	for range times {
		g.damageOnce(object)
	}
}

func (g *generator) damageOnce(object tree) {
	// Metadata, kind and apiVersion are damaged rarely, so that most errors are of the schema.
	if meta, isTree := object["metadata"].(tree); isTree && g.chance(30) {
		g.damageMetadata(meta)
		return
	}
	if g.chance(150) {
		object[pick(g, "kind", "apiVersion", "metadata")] = g.oddValue()
		return
	}
	rest := tree{}
	for name, value := range object {
		if name != "metadata" && name != "kind" && name != "apiVersion" {
			rest[name] = value
		}
	}
	found := places(rest, nil)
	defer func() {
		for name := range object {
			if name != "metadata" && name != "kind" && name != "apiVersion" {
				delete(object, name)
			}
		}
		for name, value := range rest {
			object[name] = value
		}
	}()
	if len(found) == 0 {
		rest[g.fieldName()] = g.oddValue()
		return
	}
	at := found[g.IntN(len(found))]
	switch g.IntN(8) {
	case 0:
		at.set(nil)
	case 1:
		at.set(g.oddValue())
	case 2:
		if at.object != nil {
			delete(at.object, at.key)
		} else {
			at.set(nil)
		}
	case 3, 4:
		if inner, isTree := at.get().(tree); isTree {
			inner[pick(g, "unknown", "zz", "Spec", "a", "")] = g.oddValue()
		} else if list, isList := at.get().([]any); isList && len(list) > 0 {
			at.set(append(list, copied(list[g.IntN(len(list))])))
		} else {
			if g.chance(8) {
				rest[pick(g, "unknown", "zz", "Spec")] = g.oddValue()
			}
			at.set(g.oddValue())
		}
	case 5:
		if list, isList := at.get().([]any); isList {
			if len(list) > 0 {
				list = append(list, copied(list[0]))
			} else {
				list = append(list, g.oddValue())
			}
			at.set(list)
		} else {
			at.set(g.oddValue())
		}
	case 6:
		switch value := at.get().(type) {
		case string:
			at.set(pick(g, value+"x", strings.ToUpper(value), value+value, g.word()))
		case int:
			at.set(pick[any](g, value+1, -value, float64(value)+0.5, fmt.Sprint(value), json.Number("1e3"), json.Number("12345678901234567890")))
		case []any:
			at.set([]any{})
		default:
			at.set(g.oddValue())
		}
	default:
		at.set(g.word())
	}
}

func (g *generator) oddValue() any {
	return pick[any](g, nil, 1, -7, 1.5, "text", true, false, []any{}, tree{}, []any{1, "a", nil}, []any{nil}, tree{"a": tree{"b": "c"}},
		tree{"name": "n", "v": 1}, json.Number("1e100"), json.Number("9223372036854775807"), json.Number("9223372036854775808"),
		json.Number("-0"), json.Number("1.0"), json.Number("0.1e1"), []any{tree{"name": "x"}, tree{"name": "x"}})
}

func (g *generator) damageMetadata(meta tree) {
	switch g.IntN(9) {
	case 0:
		meta["unknown"] = g.oddValue()
	case 1:
		meta["labels"] = tree{"l": g.oddValue()}
	case 2:
		meta["annotations"] = g.oddValue()
	case 3:
		meta["ownerReferences"] = []any{tree{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "odd": 1}}
	case 4:
		meta["creationTimestamp"] = pick[any](g, nil, "2020-01-01T00:00:00Z", "yesterday", 5)
	case 5:
		meta["generation"] = pick[any](g, 5, "5", 1.5, nil)
	case 6:
		meta["finalizers"] = pick[any](g, []any{"a", "a.io/b", "A B"}, "f", []any{1})
	case 7:
		meta["name"] = pick[any](g, "A", "", "a_b", 5, nil)
	default:
		meta["namespace"] = pick[any](g, "n", "", 5)
	}
}

func (g *generator) structuralCase() question {
	for {
		g.depth = 0
		root := g.rootSchema()
		if !g.chance(8) {
			for range 1 + g.IntN(3) {
				g.damageSchema(root)
			}
		}
		asked := question{Op: "structural", Schema: raw(root)}
		if len(asked.Schema) > 900 {
			continue
		}
		if answer, err := asked.answer(); err == nil {
			given, isAnswer := answer.(*structuralAnswer)
			if isAnswer && given.ConversionError == "" && len(given.Structural) == 0 && len(given.Definition) == 0 && !g.chance(8) {
				continue
			}
			return asked
		}
	}
}

// schemas are all schemas in a schema, itself included.
func schemas(value any, found []tree) []tree {
	s, isTree := value.(tree)
	if !isTree {
		return found
	}
	found = append(found, s)
	for _, key := range sortedKeys(s) {
		switch key {
		case "properties", "patternProperties", "definitions":
			if inner, isTree := s[key].(tree); isTree {
				for _, name := range sortedKeys(inner) {
					found = schemas(inner[name], found)
				}
			}
		case "items", "additionalProperties", "not", "additionalItems":
			found = schemas(s[key], found)
		case "allOf", "anyOf", "oneOf":
			if list, isList := s[key].([]any); isList {
				for _, inner := range list {
					found = schemas(inner, found)
				}
			}
		}
	}
	return found
}

// damageSchema makes a schema differ from what the rules allow, mostly.
func (g *generator) damageSchema(root tree) {
	found := schemas(root, nil)
	s := found[g.IntN(len(found))]
	switch g.IntN(24) {
	case 0, 1:
		delete(s, "type")
	case 2:
		s["type"] = pick(g, "object", "array", "string", "integer", "null", "number", "thing", "")
	case 3:
		s["nullable"] = true
	case 4:
		s["title"], s["description"] = "t", "d"
	case 5:
		s["additionalProperties"] = pick[any](g, true, false, tree{"type": "string"}, tree{})
	case 6:
		s["properties"] = tree{g.fieldName(): g.schema()}
	case 7:
		delete(s, pick(g, "items", "properties", "additionalProperties"))
	case 8:
		s["default"] = g.oddDefault()
	case 9, 10:
		junctor := pick(g, "allOf", "anyOf", "oneOf")
		s[junctor] = []any{pick(g, tree{"type": "string"}, tree{"properties": tree{"new": tree{}}}, tree{"nullable": true}, tree{"default": 1},
			tree{"items": tree{}}, tree{"description": "d"}, tree{"additionalProperties": tree{}}, tree{"x-kubernetes-int-or-string": true},
			tree{"properties": tree{"metadata": tree{}}}, tree{"not": tree{"properties": tree{"new": tree{"minimum": 1}}}}, tree{"items": tree{"maximum": 1}},
			tree{"x-kubernetes-preserve-unknown-fields": true}, tree{"x-kubernetes-embedded-resource": true}, tree{"title": "t"},
			tree{"x-kubernetes-list-type": "set"}, tree{"x-kubernetes-list-map-keys": []any{"a"}}, tree{"x-kubernetes-map-type": "atomic"},
			tree{"uniqueItems": true}, tree{"pattern": "("}, tree{"enum": []any{1}})}
	case 11:
		s["not"] = pick(g, tree{"type": "string"}, tree{"required": []any{"a"}}, tree{"properties": tree{"new": tree{"minimum": 1}}})
	case 12:
		s["pattern"] = pick(g, "(", "a{2,1}", "[z-a]", "(?=a)", `\8`, "*", "a**", `(?P<n>a)`, "[[:foo:]]", `\pX`, "a{1001}", "(?<n>a)")
	case 13:
		s["uniqueItems"] = pick[any](g, true, false)
	case 14:
		s[pick(g, "$ref", "id", "$schema")] = "http://a.io/x"
	case 15:
		s[pick(g, "definitions", "patternProperties")] = tree{"a": tree{"type": "string"}}
	case 16:
		s["dependencies"] = tree{"a": pick[any](g, []any{"b"}, tree{"type": "object"})}
	case 17:
		s["items"] = pick[any](g, []any{tree{"type": "string"}}, tree{}, tree{"type": "string"})
	case 18:
		s["additionalItems"] = pick[any](g, true, tree{"type": "string"})
	case 19:
		s["x-kubernetes-list-type"] = pick(g, "set", "map", "atomic", "list", "")
	case 20:
		s["x-kubernetes-list-map-keys"] = pick[any](g, []any{"name"}, []any{"name", "name"}, []any{"other"}, []any{})
	case 21:
		s["x-kubernetes-map-type"] = pick(g, "atomic", "granular", "other")
	case 22:
		s[pick(g, "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string")] = true
	default:
		switch g.IntN(4) {
		case 0:
			s["x-kubernetes-preserve-unknown-fields"] = pick(g, true, false)
		case 1:
			s["required"] = []any{pick(g, "a", "missing")}
		case 2:
			s["enum"] = pick[any](g, []any{}, []any{1, "a", nil}, []any{tree{"a": 1}})
		default:
			if properties, isTree := root["properties"].(tree); isTree {
				properties[pick(g, "metadata", "kind", "apiVersion")] = pick(g, tree{"type": "string"}, tree{"type": "object"}, tree{"type": "integer"},
					tree{"type": "object", "properties": tree{"labels": tree{"type": "object"}}},
					tree{"type": "object", "properties": tree{"name": tree{"type": "string", "default": "n"}}},
					tree{"type": "object", "minProperties": 1})
			}
		}
	}
}

func (g *generator) oddDefault() any {
	return pick[any](g, nil, 1, "a", 1.5, true, tree{}, []any{}, tree{"a": 1}, tree{"unknown": 1}, []any{nil}, tree{"metadata": tree{"name": 5}})
}
