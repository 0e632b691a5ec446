// Writes certificate chains and what Go's crypto/x509, which verifies them in every Kubernetes component, says of each:
//
//	go run . > ../../../src/tls/path/chains.json
//
// src/tls/path/tests.rs compares our verdicts with these. Keys are new in each run.
package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"math/big"
	"net"
	"net/url"
	"os"
	"time"
)

var (
	now   = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	begin = now.AddDate(-1, 0, 0)
	end   = now.AddDate(50, 0, 0)
)

// Case is a chain and Go's verdict.
type Case struct {
	Name          string   `json:"name"`
	Leaf          []byte   `json:"leaf"`
	Intermediates [][]byte `json:"intermediates,omitempty"`
	Roots         [][]byte `json:"roots"`
	// "client" or "server".
	Usage string `json:"usage"`
	// The server's name; empty for none.
	Host string `json:"host,omitempty"`
	// Go's error; empty if it accepts the chain.
	Error string `json:"error,omitempty"`
}

type change func(*x509.Certificate)

// holder is a certificate with its key.
type holder struct {
	der  []byte
	cert *x509.Certificate
	key  crypto.Signer
}

var serial int64 = 1

func newKey() crypto.Signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	return key
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// issue makes a certificate; a nil issuer means that it signs itself.
func issue(name string, issuer *holder, key crypto.Signer, changes ...change) *holder {
	serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    begin,
		NotAfter:     end,
	}
	for _, change := range changes {
		change(template)
	}
	if key == nil {
		key = newKey()
	}
	parent, signer := template, key
	if issuer != nil {
		signer = issuer.key
		// Only its name and key matter: also what is no authority may sign here.
		parent = &x509.Certificate{Subject: issuer.cert.Subject, RawSubject: issuer.cert.RawSubject, PublicKey: issuer.key.Public(), SubjectKeyId: issuer.cert.SubjectKeyId}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	must(err)
	return &holder{der, template, key}
}

func authority(it *x509.Certificate) {
	it.IsCA, it.BasicConstraintsValid, it.KeyUsage, it.MaxPathLen = true, true, x509.KeyUsageCertSign, -1
}

func endEntity(it *x509.Certificate) {
	it.BasicConstraintsValid, it.KeyUsage = true, x509.KeyUsageDigitalSignature
	it.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
}

func pathLen(limit int) change {
	return func(it *x509.Certificate) { it.MaxPathLen, it.MaxPathLenZero = limit, limit == 0 }
}

func keyUsage(usage x509.KeyUsage) change {
	return func(it *x509.Certificate) { it.KeyUsage = usage }
}

func usages(list ...x509.ExtKeyUsage) change {
	return func(it *x509.Certificate) { it.ExtKeyUsage = list }
}

func noConstraints(it *x509.Certificate) { it.BasicConstraintsValid, it.IsCA = false, false }
func notAuthority(it *x509.Certificate)  { it.IsCA, it.BasicConstraintsValid = false, true }
func expired(it *x509.Certificate)       { it.NotAfter = now.Add(-time.Second) }
func untilNow(it *x509.Certificate)      { it.NotAfter = now }
func future(it *x509.Certificate)        { it.NotBefore = now.Add(time.Second) }

func extension(critical bool, value any, oid ...int) change {
	der, ok := value.([]byte)
	if !ok {
		var err error
		der, err = asn1.Marshal(value)
		must(err)
	}
	return func(it *x509.Certificate) {
		it.ExtraExtensions = append(it.ExtraExtensions, pkix.Extension{Id: oid, Critical: critical, Value: der})
	}
}

func dns(names ...string) change { return func(it *x509.Certificate) { it.DNSNames = names } }
func ip(text ...string) change {
	return func(it *x509.Certificate) {
		for _, one := range text {
			it.IPAddresses = append(it.IPAddresses, net.ParseIP(one))
		}
	}
}
func email(text string) change {
	return func(it *x509.Certificate) { it.EmailAddresses = []string{text} }
}
func uri(text string) change {
	parsed, err := url.Parse(text)
	must(err)
	return func(it *x509.Certificate) { it.URIs = []*url.URL{parsed} }
}
func permitDNS(names ...string) change {
	return func(it *x509.Certificate) { it.PermittedDNSDomains, it.PermittedDNSDomainsCritical = names, true }
}
func excludeDNS(names ...string) change {
	return func(it *x509.Certificate) { it.ExcludedDNSDomains = names }
}
func network(text string) []*net.IPNet {
	_, it, err := net.ParseCIDR(text)
	must(err)
	return []*net.IPNet{it}
}

var (
	policyA   = asn1.ObjectIdentifier{1, 2, 3, 1}
	policyB   = asn1.ObjectIdentifier{1, 2, 3, 2}
	anyPolicy = asn1.ObjectIdentifier{2, 5, 29, 32, 0}
)

type policyInformation struct{ ID asn1.ObjectIdentifier }
type policyMapping struct{ Issuer, Subject asn1.ObjectIdentifier }

func policies(critical bool, ids ...asn1.ObjectIdentifier) change {
	var list []policyInformation
	for _, id := range ids {
		list = append(list, policyInformation{id})
	}
	return extension(critical, list, 2, 5, 29, 32)
}

// requireExplicit: DER by hand, because a zero is not left out.
func requireExplicit(skip byte) change {
	return extension(true, []byte{0x30, 3, 0x80, 1, skip}, 2, 5, 29, 36)
}
func inhibitAny(skip int) change { return extension(true, skip, 2, 5, 29, 54) }

// oldVersion makes a certificate of version 1 out of one of version 3, signed by issuer.
func oldVersion(of *holder, issuer *holder) *holder {
	var outer struct {
		TBS       asn1.RawValue
		Algorithm asn1.RawValue
		Signature asn1.BitString
	}
	_, err := asn1.Unmarshal(of.der, &outer)
	must(err)
	var kept []byte
	for rest := outer.TBS.Bytes; len(rest) > 0; {
		var field asn1.RawValue
		rest, err = asn1.Unmarshal(rest, &field)
		must(err)
		if field.Class != asn1.ClassContextSpecific {
			kept = append(kept, field.FullBytes...)
		}
	}
	tbs, err := asn1.Marshal(asn1.RawValue{Class: asn1.ClassUniversal, Tag: asn1.TagSequence, IsCompound: true, Bytes: kept})
	must(err)
	digest := sha256.Sum256(tbs)
	signature, err := issuer.key.Sign(rand.Reader, digest[:], crypto.SHA256)
	must(err)
	outer.TBS = asn1.RawValue{FullBytes: tbs}
	outer.Signature = asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}
	der, err := asn1.Marshal(outer)
	must(err)
	return &holder{der, of.cert, of.key}
}

var cases []Case

func add(name, usage, host string, leaf *holder, intermediates []*holder, roots ...*holder) {
	it := Case{Name: name, Usage: usage, Host: host, Leaf: leaf.der}
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now, DNSName: host}
	options.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if usage == "server" {
		options.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	for _, one := range intermediates {
		it.Intermediates = append(it.Intermediates, one.der)
		if parsed, err := x509.ParseCertificate(one.der); err == nil {
			options.Intermediates.AddCert(parsed)
		}
	}
	for _, one := range roots {
		it.Roots = append(it.Roots, one.der)
		if parsed, err := x509.ParseCertificate(one.der); err == nil {
			options.Roots.AddCert(parsed)
		}
	}
	parsed, err := x509.ParseCertificate(leaf.der)
	if err == nil {
		_, err = parsed.Verify(options)
	}
	if err != nil {
		it.Error = err.Error()
	}
	cases = append(cases, it)
}

// client adds a chain of a leaf, authorities and a root; each nil stands for an ordinary one.
func client(name string, root *holder, intermediates []*holder, leaf ...change) {
	above := root
	if len(intermediates) > 0 {
		above = intermediates[len(intermediates)-1]
	}
	add(name, "client", "", issue("jane", above, nil, append([]change{endEntity}, leaf...)...), intermediates, root)
}

func below(root *holder, changes ...change) []*holder {
	return []*holder{issue("intermediate", root, nil, append([]change{authority}, changes...)...)}
}

func main() {
	root := issue("root", nil, nil, authority)
	newRoot := func(changes ...change) *holder {
		return issue("root", nil, nil, append([]change{authority}, changes...)...)
	}
	unknown := extension(true, 5, 1, 2, 3, 4)

	// Basic constraints and key usage.
	client("plain", root, nil)
	client("plain by an intermediate", root, below(root))
	for _, limit := range []int{0, 1} {
		limited := newRoot(pathLen(limit))
		client("root of path length "+string(rune('0'+limit)), limited, nil)
		one := below(limited)
		client("one below a root of path length "+string(rune('0'+limit)), limited, one)
		two := append(one, issue("second", one[0], nil, authority))
		client("two below a root of path length "+string(rune('0'+limit)), limited, two)
	}
	limited := below(root, pathLen(0))
	client("intermediate of path length 0", root, limited)
	client("one below an intermediate of path length 0", root, append(limited, issue("second", limited[0], nil, authority)))
	leafAuthority := issue("leaf authority", limited[0], nil, authority, usages(x509.ExtKeyUsageClientAuth))
	add("an authority as leaf below path length 0", "client", "", leafAuthority, limited, root)
	lengthZero := newRoot(pathLen(0))
	selfIssued := issue("root", lengthZero, nil, authority)
	client("self-issued below a root of path length 0", lengthZero, []*holder{selfIssued})
	client("a root with path length that is no authority", newRoot(notAuthority, extension(true, []byte{0x30, 3, 2, 1, 0}, 2, 5, 29, 19)), nil)

	sign := x509.KeyUsageCertSign
	for name, usage := range map[string]x509.KeyUsage{
		"none": 0, "cRLSign": x509.KeyUsageCRLSign, "digitalSignature": x509.KeyUsageDigitalSignature,
		"both": sign | x509.KeyUsageDigitalSignature,
	} {
		it := newRoot(keyUsage(usage))
		client("root with key usage "+name, it, nil)
		client("intermediate with key usage "+name, root, below(root, keyUsage(usage)))
		client("leaf with key usage "+name, root, nil, keyUsage(usage))
	}
	empty := extension(true, asn1.BitString{}, 2, 5, 29, 15)
	client("root with an empty key usage", newRoot(keyUsage(0), empty), nil)
	client("intermediate with an empty key usage", root, below(root, keyUsage(0), empty))
	client("root that is no authority", newRoot(notAuthority), nil)
	client("root without basic constraints", newRoot(noConstraints), nil)
	client("intermediate that is no authority", root, below(root, notAuthority))
	client("intermediate without basic constraints", root, below(root, noConstraints))
	client("leaf without basic constraints", root, nil, noConstraints)

	// Version 1.
	oldRoot := oldVersion(root, root)
	client("root of version 1", oldRoot, nil)
	oldBelow := below(root)
	old := oldVersion(oldBelow[0], root)
	client("intermediate of version 1", root, []*holder{old})
	jane := issue("jane", root, nil, endEntity)
	add("leaf of version 1", "client", "", oldVersion(jane, root), nil, root)
	add("leaf of version 1 as server", "server", "jane", oldVersion(jane, root), nil, root)
	add("leaf of version 1 by another key", "client", "", oldVersion(jane, jane), nil, root)

	// Leaves that are authorities, and leaves in the bundle.
	client("authority as leaf", root, nil, authority)
	add("authority as leaf without usages", "client", "", issue("jane", root, nil, authority), nil, root)
	self := issue("self", nil, nil, authority)
	add("self-signed authority in the bundle", "client", "", self, nil, self)
	add("self-signed authority not in the bundle", "client", "", self, nil, root)
	own := issue("self", nil, nil, endEntity)
	add("self-signed leaf in the bundle", "client", "", own, nil, own)
	add("self-signed leaf not in the bundle", "client", "", own, nil, root)
	add("leaf in the bundle with its authority", "client", "", jane, nil, jane, root)
	serving := issue("self", nil, nil, endEntity, usages(x509.ExtKeyUsageServerAuth))
	add("leaf in the bundle for servers only", "client", "", serving, nil, serving)
	old2 := issue("self", nil, nil, endEntity, expired)
	add("expired leaf in the bundle", "client", "", old2, nil, old2)
	add("leaf in the bundle with an unknown critical extension", "client", "", issue("x", nil, nil, endEntity, unknown), nil, root)
	pinned := issue("x", nil, nil, endEntity, unknown)
	add("pinned leaf with an unknown critical extension", "client", "", pinned, nil, pinned)
	add("signed by a leaf in the bundle", "client", "", issue("mallory", jane, nil, endEntity), nil, jane)
	add("signed by a leaf as intermediate", "client", "", issue("mallory", jane, nil, endEntity), []*holder{jane}, root)
	add("leaf whose intermediate is trusted", "client", "", issue("joe", limited[0], nil, endEntity), nil, limited[0])

	// Dates.
	client("expired leaf", root, nil, expired)
	client("leaf that ends now", root, nil, untilNow)
	client("leaf of tomorrow", root, nil, future)
	client("expired intermediate", root, below(root, expired))
	client("expired root", newRoot(expired), nil)
	client("root of tomorrow", newRoot(future), nil)
	key := newKey()
	stale, fresh := issue("root", nil, key, authority, expired), issue("root", nil, key, authority)
	add("expired root renewed", "client", "", issue("jane", fresh, nil, endEntity), nil, stale, fresh)

	// Signatures and names.
	other := issue("root", nil, nil, authority)
	add("root of the same name with another key", "client", "", jane, nil, other)
	add("two roots of the same name", "client", "", jane, nil, other, root)
	add("unknown root", "client", "", jane, nil, self)
	add("no intermediate", "client", "", issue("jane", limited[0], nil, endEntity), nil, root)
	add("intermediate of the same name with another key", "client", "", issue("jane", below(root)[0], nil, endEntity), below(root), root)
	keyA, keyB := newKey(), newKey()
	a := issue("a", nil, keyA, authority)
	b := issue("b", nil, keyB, authority)
	ab, ba := issue("a", b, keyA, authority), issue("b", a, keyB, authority)
	add("cross-signed loop without a root", "client", "", issue("jane", a, nil, endEntity), []*holder{ab, ba}, root)
	add("cross-signed loop with a root", "client", "", issue("jane", a, nil, endEntity), []*holder{ab, ba}, b)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	client("root with an RSA key", issue("root", nil, rsaKey, authority), nil)
	shortKey, err := rsa.GenerateKey(rand.Reader, 1024)
	must(err)
	client("root with an RSA key of 1024 bits", issue("root", nil, shortKey, authority), nil)
	client("leaf by RSA-PSS", issue("root", nil, rsaKey, authority), nil, func(it *x509.Certificate) { it.SignatureAlgorithm = x509.SHA256WithRSAPSS })
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	must(err)
	client("root with P-384", issue("root", nil, p384, authority), nil)
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	must(err)
	client("root with P-521", issue("root", nil, p521, authority), nil)

	// Extended key usage, nested.
	clientAuth, serverAuth, anyUsage := x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageAny
	for name, list := range map[string][]x509.ExtKeyUsage{
		"none": {}, "client": {clientAuth}, "server": {serverAuth}, "any": {anyUsage}, "server and any": {serverAuth, anyUsage},
		"code signing": {x509.ExtKeyUsageCodeSigning}, "OCSP signing": {x509.ExtKeyUsageOCSPSigning},
	} {
		it := newRoot(usages(list...))
		client("root with usage "+name, it, nil)
		client("intermediate with usage "+name, root, below(root, usages(list...)))
		client("leaf with usage "+name, root, nil, usages(list...))
		leaf := issue("a.example", root, nil, endEntity, usages(list...), dns("a.example"))
		add("server's leaf with usage "+name, "server", "a.example", leaf, nil, root)
	}
	private := func(it *x509.Certificate) {
		it.ExtKeyUsage, it.UnknownExtKeyUsage = nil, []asn1.ObjectIdentifier{{1, 2, 3}}
	}
	client("leaf with a private usage", root, nil, private)
	client("root with a private usage", newRoot(private), nil)
	client("leaf with an empty list of usages", root, nil, usages(), extension(false, []byte{0x30, 0}, 2, 5, 29, 37))
	client("leaf with critical usages", root, nil, usages(), extension(true, []asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 2}}, 2, 5, 29, 37))

	// Critical extensions.
	client("leaf with an unknown critical extension", root, nil, unknown)
	client("leaf with an unknown extension", root, nil, extension(false, 5, 1, 2, 3, 4))
	client("intermediate with an unknown critical extension", root, below(root, unknown))
	client("root with an unknown critical extension", newRoot(unknown), nil)
	client("leaf with a critical subject key identifier", root, nil, extension(true, []byte{4, 1, 1}, 2, 5, 29, 14))
	client("leaf with a critical authority key identifier", root, nil, extension(true, []byte{0x30, 3, 0x80, 1, 1}, 2, 5, 29, 35))
	client("leaf with critical CRL distribution points", root, nil, extension(true, []byte{0x30, 0}, 2, 5, 29, 31))
	client("leaf with a critical issuer alternative name", root, nil, extension(true, []byte{0x30, 3, 0x82, 1, 'a'}, 2, 5, 29, 18))
	client("leaf with a critical alternative name", root, nil, extension(true, []byte{0x30, 3, 0x82, 1, 'a'}, 2, 5, 29, 17))
	client("leaf with a critical alternative name of an unknown kind", root, nil, extension(true, []byte{0x30, 3, 0x88, 1, 42}, 2, 5, 29, 17))
	client("leaf with an alternative name of an unknown kind", root, nil, extension(false, []byte{0x30, 3, 0x88, 1, 42}, 2, 5, 29, 17))
	client("leaf with an address of three bytes", root, nil, extension(false, []byte{0x30, 5, 0x87, 3, 1, 2, 3}, 2, 5, 29, 17))
	client("leaf with the same extension twice", root, nil, extension(false, 5, 1, 2, 3, 4), extension(false, 6, 1, 2, 3, 4))
	client("leaf with malformed basic constraints", root, nil, noConstraints, extension(true, []byte{4, 0}, 2, 5, 29, 19))
	client("intermediate with malformed basic constraints", root, below(root, noConstraints, extension(true, []byte{4, 0}, 2, 5, 29, 19)))

	// Policies.
	client("leaf with critical policies", root, nil, policies(true, policyA))
	client("intermediate with critical policies", root, below(root, policies(true, policyA)))
	client("root with critical policies", newRoot(policies(true, policyA)), nil)
	client("intermediate inhibits any policy", root, below(root, inhibitAny(0)))
	client("intermediate inhibits mapping", root, below(root, extension(true, []byte{0x30, 3, 0x81, 1, 0}, 2, 5, 29, 36)))
	for _, skip := range []byte{0, 1, 2} {
		text := "intermediate requires a policy after " + string(rune('0'+skip))
		client(text+", leaf has none", root, below(root, policies(false, policyA), requireExplicit(skip)))
		client(text+", leaf has it", root, below(root, policies(false, policyA), requireExplicit(skip)), policies(false, policyA))
		client(text+", leaf has another", root, below(root, policies(false, policyA), requireExplicit(skip)), policies(false, policyB))
		client(text+", leaf has any", root, below(root, policies(false, policyA), requireExplicit(skip)), policies(false, anyPolicy))
		client(text+", it has any", root, below(root, policies(false, anyPolicy), requireExplicit(skip)), policies(false, policyB))
		client(text+", it has none", root, below(root, requireExplicit(skip)), policies(false, policyB))
		client(text+", any inhibited", root, below(root, policies(false, policyA), requireExplicit(skip), inhibitAny(0)), policies(false, anyPolicy))
		first := below(root, policies(false, policyA), requireExplicit(skip))
		client(text+", second has none", root, append(first, issue("second", first[0], nil, authority)), policies(false, policyA))
		client(text+", second has it", root, append(first, issue("second", first[0], nil, authority, policies(false, policyA))), policies(false, policyA))
		client(text+", second has any", root, append(first, issue("second", first[0], nil, authority, policies(false, anyPolicy))), policies(false, policyA))
		again := issue("intermediate", first[0], nil, authority, policies(false, anyPolicy), inhibitAny(0))
		client(text+", self-issued second has any", root, append(first, again), policies(false, policyA))
		mapped := below(root, policies(false, policyA), requireExplicit(skip), extension(true, []policyMapping{{policyA, policyB}}, 2, 5, 29, 33))
		client(text+", mapped", root, mapped, policies(false, policyB))
		client(text+", wrongly mapped", root, mapped, policies(false, policyA))
	}
	client("leaf requires a policy", root, nil, requireExplicit(0))
	client("leaf requires a policy and has it", root, nil, requireExplicit(0), policies(false, policyA))
	client("root requires a policy", newRoot(requireExplicit(0)), nil)
	client("policies mapped, none required", root, below(root, policies(false, policyA), extension(true, []policyMapping{{policyA, policyB}}, 2, 5, 29, 33)), policies(false, policyB))
	client("any policy mapped", root, below(root, policies(false, policyA), extension(true, []policyMapping{{anyPolicy, policyB}}, 2, 5, 29, 33)))

	// Name constraints.
	permitted := below(root, permitDNS("example.com", ".b.test"))
	excluded := below(root, excludeDNS("bad.example.com", "org"))
	for _, name := range []string{"example.com", "a.example.com", "A.EXAMPLE.COM", "badexample.com", "b.test", "x.b.test", "*.example.com",
		"bad.example.com", "x.bad.example.com", "good.example.com", "org", "a.org", "a.example.com.", "", "a..b", "*.org"} {
		client("permitted DNS name "+name, root, permitted, dns(name))
		client("excluded DNS name "+name, root, excluded, dns(name))
	}
	client("no names below permitted ones", root, permitted)
	client("an address below permitted DNS names", root, permitted, ip("10.0.0.1"))
	client("root with permitted names", newRoot(permitDNS("example.com")), nil, dns("example.org"))
	client("two names, one not permitted", root, permitted, dns("example.com", "example.org"))
	addresses := below(root, func(it *x509.Certificate) {
		it.PermittedIPRanges, it.ExcludedIPRanges = network("10.0.0.0/8"), network("10.1.0.0/16")
	})
	for _, text := range []string{"10.0.0.1", "10.1.0.1", "11.0.0.1", "fd00::1", "::ffff:10.0.0.1"} {
		client("constrained address "+text, root, addresses, ip(text))
	}
	wide := below(root, func(it *x509.Certificate) { it.PermittedIPRanges = network("fd00::/9") })
	client("constrained IPv6 address", root, wide, ip("fd7f::1"))
	client("constrained IPv6 address outside", root, wide, ip("fd80::1"))
	emails := below(root, func(it *x509.Certificate) {
		it.PermittedEmailAddresses = []string{"jane@example.com", "corp.test"}
		it.ExcludedEmailAddresses = []string{"eve@corp.test"}
	})
	for _, text := range []string{"jane@example.com", "joe@example.com", "Jane@example.com", "jane@EXAMPLE.com", "a@corp.test", "a@x.corp.test", "eve@corp.test", "noat", "a@b@c"} {
		client("constrained email "+text, root, emails, email(text))
	}
	uris := below(root, func(it *x509.Certificate) {
		it.PermittedURIDomains, it.ExcludedURIDomains = []string{"cluster.local"}, []string{"x.cluster.local"}
	})
	for _, text := range []string{"spiffe://cluster.local/a", "spiffe://a.cluster.local", "spiffe://x.cluster.local/", "spiffe://other/a", "urn:x:y",
		"https://cluster.local:80/", "https://user@cluster.local/", "https://10.0.0.1/", "https://[::1]/"} {
		client("constrained URI "+text, root, uris, uri(text))
		client("unconstrained kind of URI "+text, root, permitted, uri(text))
	}
	directory := []byte{0x30, 8, 0xa0, 6, 0x30, 4, 0xa4, 2, 0x30, 0}
	client("critical directory name constraint", root, below(root, extension(true, directory, 2, 5, 29, 30)))
	client("directory name constraint", root, below(root, extension(false, directory, 2, 5, 29, 30)))
	client("empty name constraints", root, below(root, extension(true, []byte{0x30, 0}, 2, 5, 29, 30)))
	client("empty permitted names", root, below(root, extension(true, []byte{0x30, 2, 0xa0, 0}, 2, 5, 29, 30)))
	client("name constraints in the wrong order", root, below(root, extension(true, []byte{0x30, 14, 0xa1, 5, 0x30, 3, 0x82, 1, 'a', 0xa0, 5, 0x30, 3, 0x82, 1, 'b'}, 2, 5, 29, 30)))
	client("mask with a hole", root, below(root, extension(true, []byte{0x30, 14, 0xa0, 12, 0x30, 10, 0x87, 8, 10, 0, 0, 0, 255, 0, 255, 0}, 2, 5, 29, 30)))
	client("an authority's own name outside its constraint", root, below(root, permitDNS("example.com"), dns("example.org")), dns("example.com"))
	outer := below(root, permitDNS("example.com"))
	client("an authority's name outside a constraint above", root, append(outer, issue("second", outer[0], nil, authority, dns("example.org"))), dns("example.com"))
	client("constraints of two authorities", root, append(outer, issue("second", outer[0], nil, authority, permitDNS("org"))), dns("example.com"))

	// Names of servers.
	for _, pair := range [][2]string{
		{"a.example", "a.example"}, {"a.example", "A.EXAMPLE"}, {"a.example", "b.a.example"}, {"*.example", "a.example"},
		{"*.example", "a.b.example"}, {"*.example", "example"}, {"*", "localhost"}, {"a*.example", "ab.example"}, {"127.0.0.1", "127.0.0.1"},
		{"under_score", "under_score"}, {"*.*.example", "a.b.example"},
	} {
		leaf := issue(pair[1], root, nil, endEntity, dns(pair[0]))
		add("server "+pair[0]+" called "+pair[1], "server", pair[1], leaf, nil, root)
	}
	leaf := issue("x", root, nil, endEntity, ip("127.0.0.1", "::1"))
	add("server by address", "server", "127.0.0.1", leaf, nil, root)
	add("server by IPv6 address", "server", "::1", leaf, nil, root)
	add("server by another address", "server", "127.0.0.2", leaf, nil, root)
	add("server by common name", "server", "localhost", issue("localhost", root, nil, endEntity), nil, root)
	add("server as authority", "server", "a.example", issue("a", root, nil, authority, dns("a.example")), nil, root)
	add("server with critical policies", "server", "a.example", issue("a", root, nil, endEntity, dns("a.example"), policies(true, policyA)), nil, root)
	ownServer := issue("a", nil, nil, authority, dns("a.example"))
	add("server in the bundle", "server", "a.example", ownServer, nil, ownServer)
	add("server in the bundle by another name", "server", "b.example", ownServer, nil, ownServer)

	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	os.Stdout.WriteString("[\n")
	for position, it := range cases {
		if position > 0 {
			os.Stdout.WriteString(",")
		}
		must(encoder.Encode(it))
	}
	os.Stdout.WriteString("]\n")
}
