package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

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
		if g.chance(25) && !asked.PreserveUnknownFields {
			asked.Scale = json.RawMessage(`{"specReplicasPath":".spec.n","statusReplicasPath":".status.n","labelSelectorPath":".status.s"}`)
			properties := root["properties"].(tree)
			properties["spec"] = tree{"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": tree{"n": tree{"type": "integer", "default": pick(g, 1, -1)}}}
			properties["status"] = tree{"type": "object", "properties": tree{"n": tree{"type": "integer"}, "s": tree{"type": "string"}}}
		}
		asked.Schema = raw(root)
		if !asked.PreserveUnknownFields && !isAccepted(asked.Schema, asked.Status) {
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
		if given, isObject := answer.(*objectAnswer); isObject && (given.isOfOtherKind() || given.isPlain() && !g.chance(6)) {
			continue
		}
		return asked
	}
}

func (a *objectAnswer) isPlain() bool {
	return a.DecodeError == "" && len(a.Strict) == 0 && a.Pruned == nil && a.Defaulted == nil && len(a.Errors) == 0
}

// isOfOtherKind says that upstream's handler refuses the object before it asks the strategy.
func (a *objectAnswer) isOfOtherKind() bool {
	return slices.ContainsFunc(a.Errors, func(err fieldError) bool { return err.Field == "apiVersion" && err.From == "meta" })
}

// isAccepted says whether a definition with a schema can be created.
func isAccepted(schema json.RawMessage, hasStatus bool) bool {
	subresources := "{}"
	if hasStatus {
		subresources = `{"status":{}}`
	}
	asked := question{Definition: definitionWith(schema, subresources)}
	answer, err := asked.definitionAnswer()
	return err == nil && answer.DecodeError == "" && len(answer.Errors) == 0
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
		meta["namespace"] = pick[any](g, "", 5)
	}
}
