// Package access holds rights and payment: tenants with their quotas, tokens, admissions, the audit
// and the bills.
package access

import "pando.run/pando"

// Operators are all requests of operators: also those about tenants and their tokens.
type Operators interface {
	pando.Operators
	TenantOperators
	TokenOperators
}
