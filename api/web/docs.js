"use strict";
// Shows /openapi.json: each operation, its parameters, its body with examples of use, its answers.

const make = (tag, text, ...inside) => {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.append(...inside);
  return element;
};

function resolve(all, schema) {
  if (schema?.$ref) return all.components.schemas[schema.$ref.split("/").at(-1)];
  return schema ?? {};
}

function kind(all, schema) {
  if (schema.$ref) return kind(all, resolve(all, schema));
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.anyOf) return schema.anyOf.map((one) => kind(all, one)).join(" or ");
  const limits = ["minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength"].filter((name) => name in schema);
  return [schema.type ?? "any", ...limits.map((name) => `${name} ${schema[name]}`)].join(", ");
}

function fields(all, schema) {
  const { properties = {}, required = [] } = resolve(all, schema);
  const rows = Object.entries(properties).map(([name, part]) => {
    const fixed = "default" in part && part.default !== null ? `, by default ${JSON.stringify(part.default)}` : "";
    return make("li", "", make("code", name), ` ${kind(all, part)}${fixed}${required.includes(name) ? " (required)" : ""}`);
  });
  return make("ul", "", ...rows);
}

async function show() {
  const all = await (await fetch("/openapi.json")).json();
  document.getElementById("about").textContent = `${all.info.version}. ${all.info.description}`;
  for (const [path, methods] of Object.entries(all.paths)) for (const [method, operation] of Object.entries(methods)) {
    const summary = make("summary", "", make("code", `${method.toUpperCase()} ${path}`), ` — ${operation.summary}`);
    const entry = make("details", "", summary);
    const parameters = operation.parameters.map((one) => make("li", "", make("code", one.name), ` in ${one.in}. ${one.description ?? ""}`));
    if (parameters.length) entry.append(make("ul", "", ...parameters));
    const schema = operation.requestBody?.content["application/json"].schema;
    if (schema) entry.append(make("h4", "Body"), fields(all, schema));
    const answers = Object.entries(operation.responses).map(([status, answer]) =>
      make("li", "", make("code", status), ` ${answer.description} ${Object.keys(answer.content ?? {}).join(", ")}`));
    entry.append(make("h4", "Answers"), make("ul", "", ...answers));
    document.getElementById("operations").append(entry);
  }
}

show();
