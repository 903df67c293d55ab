; Definitions
(class_definition name: (identifier) @name) @definition.class
(function_definition name: (identifier) @name) @definition.function
(module (expression_statement (assignment left: (identifier) @name) @definition.constant))
(module (type_alias_statement left: (type (identifier) @name)) @definition.type)
(class_definition body: (block (expression_statement (assignment left: (identifier) @name) @definition.field)))

; References
(call function: (identifier) @name) @reference.call
(call function: (attribute attribute: (identifier) @name)) @reference.call
(decorator (identifier) @name) @reference.call
(decorator (attribute attribute: (identifier) @name)) @reference.call
(class_definition superclasses: (argument_list (identifier) @name)) @reference.type
(class_definition superclasses: (argument_list (attribute attribute: (identifier) @name))) @reference.type
(type (identifier) @name) @reference.type
(type (_ (identifier) @name)) @reference.type
(type (attribute attribute: (identifier) @name)) @reference.type
(import_from_statement name: (dotted_name (identifier) @name .)) @reference.import
(import_from_statement name: (aliased_import name: (dotted_name (identifier) @name .))) @reference.import
(import_from_statement module_name: (dotted_name (identifier) @name .)) @reference.import
(import_from_statement module_name: (relative_import (dotted_name (identifier) @name .))) @reference.import
(import_statement name: (dotted_name (identifier) @name .)) @reference.import
(import_statement name: (aliased_import name: (dotted_name (identifier) @name .))) @reference.import
(attribute attribute: (identifier) @name) @reference.use
(argument_list (identifier) @name) @reference.use
(keyword_argument value: (identifier) @name) @reference.use

; Words for the search
(comment) @text
(string) @text
