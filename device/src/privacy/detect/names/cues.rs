//! Words that show that a name stands beside them, in English, German and Spanish.

/// Frequent words that tell the languages apart.
pub(super) const ENGLISH: &[&str] = &[
    "the", "and", "of", "to", "is", "are", "was", "were", "for", "with", "my", "your", "our", "his", "her", "that",
    "this", "it", "be", "has", "have", "had", "at", "by", "on", "from", "will", "would", "you", "i", "we", "they",
    "not", "please", "said", "dear", "did", "does", "about", "who", "what", "which", "she", "he",
];
pub(super) const GERMAN: &[&str] = &[
    "der", "die", "das", "und", "ist", "sind", "war", "nicht", "mit", "von", "für", "auf", "zu", "den", "dem", "ein",
    "eine", "einen", "einer", "ich", "du", "wir", "sie", "er", "mein", "meine", "unser", "unsere", "hat", "haben",
    "wird", "bitte", "aus", "bei", "nach", "im", "am", "zum", "zur", "dass", "frau", "herr", "liebe", "lieber", "an",
    "sich", "ihr", "ihre", "wie", "kann", "hallo", "grüße", "grüßen", "wurde", "sagte",
];
pub(super) const SPANISH: &[&str] = &[
    "el", "la", "los", "las", "de", "del", "y", "que", "en", "es", "un", "una", "con", "por", "para", "mi", "su",
    "se", "no", "al", "lo", "ha", "han", "está", "son", "fue", "como", "más", "pero", "nuestro", "nuestra", "hola",
    "querida", "querido", "estimado", "estimada", "señor", "señora", "don", "doña", "sobre", "según", "entre", "dijo",
];

/// Titles before a name.
pub(super) const TITLES: &[&str] = &[
    "mr", "mrs", "ms", "miss", "mx", "dr", "prof", "professor", "doctor", "sir", "madam", "judge", "justice",
    "captain", "sergeant", "officer", "lord", "lady", "president", "senator", "governor", "mayor", "reverend", "rev",
    "fr", "hon", "herr", "herrn", "frau", "fräulein", "med", "phil", "jur", "nat", "dipl", "ing", "professorin",
    "doktor", "richter", "richterin", "sr", "sra", "srta", "señor", "señora", "señorita", "don", "doña", "dra", "profa",
    "profesor", "profesora", "juez", "jueza", "fray", "lic", "licenciado", "licenciada", "ingeniero", "ingeniera",
    "familie", "family", "familia", "m", "mme", "monsieur", "madame", "signor", "signora", "dott", "pan", "pani",
];

/// Words for people before a name: family, work, law and medicine.
pub(super) const ROLES: &[&str] = &[
    "neighbour", "neighbor", "boss", "manager", "colleague", "coworker", "friend", "sister", "brother", "mother",
    "father", "mom", "mum", "dad", "uncle", "aunt", "cousin", "nephew", "niece", "son", "daughter", "wife", "husband",
    "partner", "girlfriend", "boyfriend", "grandmother", "grandfather", "landlord", "landlady", "tenant", "roommate",
    "customer", "client", "patient", "nurse", "physician", "teacher", "student", "pupil", "witness", "lawyer",
    "attorney", "notary", "accountant", "assistant", "secretary", "contact", "applicant", "candidate", "employee",
    "supervisor", "director", "chairman", "chairwoman", "chair", "councillor", "detective", "plaintiff", "defendant",
    "named", "called", "signed", "mr", "mrs", "minister", "ceo", "cto", "cfo", "editor", "author", "owner", "driver",
    "nachbar", "nachbarin", "chef", "chefin", "kollege", "kollegin", "freund", "freundin", "schwester", "bruder",
    "mutter", "vater", "mama", "papa", "onkel", "tante", "cousine", "vetter", "neffe", "nichte", "sohn", "tochter",
    "mann", "ehemann", "ehefrau", "oma", "opa", "vermieter", "vermieterin", "mieter", "mieterin", "kunde", "kunden",
    "kundin", "klient", "klientin", "mandant", "mandantin", "patientin", "patienten", "arzt", "ärztin", "lehrer",
    "lehrerin", "schüler", "schülerin", "zeuge", "zeugin", "anwalt", "anwältin", "notarin", "bewerber", "bewerberin",
    "mitarbeiter", "mitarbeiterin", "geschäftsführer", "geschäftsführerin", "kläger", "klägerin", "beklagte",
    "beklagter", "vorsitzende", "vorsitzender", "ansprechpartner", "ansprechpartnerin", "namens", "bürgermeister",
    "bürgermeisterin", "kanzler", "kanzlerin", "ministerin", "präsident", "präsidentin", "trainer", "sprecher",
    "sprecherin", "hausarzt", "hausärztin", "pfleger", "pflegerin", "vecino", "vecina", "jefe", "jefa", "colega",
    "compañero", "compañera", "amigo", "amiga", "hermana", "hermano", "madre", "padre", "mamá", "papá", "tío", "tía",
    "primo", "prima", "sobrino", "sobrina", "hijo", "hija", "esposo", "esposa", "marido", "mujer", "novio", "novia",
    "abuelo", "abuela", "casero", "casera", "inquilino", "inquilina", "cliente", "clienta", "paciente", "médico",
    "médica", "enfermero", "enfermera", "maestro", "maestra", "alumno", "alumna", "testigo", "abogado", "abogada",
    "notario", "notaria", "contable", "solicitante", "candidato", "candidata", "empleado", "empleada", "directora",
    "presidente", "presidenta", "ministro", "ministra", "alcalde", "alcaldesa", "llamado", "llamada", "portavoz",
    "doctora", "demandante", "acusado", "acusada", "secretario", "secretaria", "gerente", "socio", "socia",
];

/// Words with which a letter or a message begins.
pub(super) const GREETINGS: &[&str] = &[
    "dear", "hi", "hello", "hey", "liebe", "lieber", "hallo", "geehrte", "geehrter", "servus", "moin", "hola",
    "querida", "querido", "estimada", "estimado", "apreciada", "apreciado", "morning", "evening", "thanks", "danke",
    "gracias",
];

/// Last words of the line before a signature.
pub(super) const CLOSINGS: &[&str] = &[
    "regards", "wishes", "yours", "sincerely", "faithfully", "cheers", "thanks", "truly", "love", "best", "cordially",
    "respectfully", "grüßen", "grüße", "gruß", "grüßle", "hochachtungsvoll", "lg", "mfg", "saludo", "saludos", "abrazo",
    "abrazos", "atentamente", "cordialmente", "beso", "besos", "cordial", "cordiales",
];

/// Labels before a colon, or headers of a field, whose value is a person.
pub(super) const LABELS: &[&str] = &[
    "name", "from", "to", "cc", "bcc", "attendees", "present", "apologies", "absent", "participants", "by", "author",
    "contact", "customer", "client", "patient", "tenant", "landlord", "student", "teacher", "employee", "employer",
    "applicant", "witness", "physician", "doctor", "signed", "speaker", "owner", "assignee", "reviewer", "manager",
    "ship", "bill", "recipient", "sender", "attn", "minutes", "chair", "seller", "buyer", "insured", "holder",
    "firstname", "lastname", "surname", "fullname", "full_name", "first_name", "last_name", "user", "member", "team",
    "teilnehmer", "anwesend", "entschuldigt", "abwesend", "protokoll", "protokollführer", "von", "an", "kunde",
    "kundin", "patientin", "mieter", "mieterin", "vermieter", "vermieterin", "schüler", "schülerin", "lehrer",
    "lehrerin", "mitarbeiter", "mitarbeiterin", "arzt", "ärztin", "ansprechpartner", "ansprechpartnerin",
    "rechnungsempfänger", "empfänger", "absender", "gezeichnet", "gez", "verfasser", "vorname", "nachname", "leitung",
    "bearbeiter", "käufer", "verkäufer", "zeuge", "zeugin", "kontakt", "unterschrift", "nombre", "de", "para", "cliente",
    "paciente", "asistentes", "presentes", "ausentes", "contacto", "inquilino", "inquilina", "propietario",
    "propietaria", "alumno", "alumna", "profesor", "profesora", "empleado", "remitente", "destinatario", "firmado",
    "firma", "médico", "autor", "autora", "titular", "apellidos", "testigo", "vendedor", "comprador", "enviar",
    "solicitante", "responsable", "acta", "nom", "nome", "naam",
];

/// Words before a person, besides roles: verbs with a person as their object, and prepositions.
pub(super) const BEFORE_PERSON: &[&str] = &[
    "ask", "asked", "tell", "told", "thank", "met", "meet", "married", "hired", "fired", "call", "email", "emailed",
    "remind", "invite", "invited", "cc", "by", "frag", "frage", "sag", "sage", "bitte", "heiratete", "traf",
    "informiere", "grüß", "dile", "pregunta", "avisa", "invita", "llama", "contacta",
];

/// Verbs after a person.
pub(super) const AFTER_PERSON: &[&str] = &[
    "said", "says", "asked", "replied", "answered", "called", "reports", "reported", "wants", "wanted", "thinks",
    "thought", "wrote", "writes", "told", "left", "prescribed", "rejected", "agreed", "confirmed", "knows", "lives",
    "lived", "died", "married", "joined", "resigned", "explained", "added", "argued", "suggested", "needs", "says",
    "sagte", "sagt", "fragte", "fragt", "antwortete", "schrieb", "schreibt", "rief", "will", "wollte", "meint",
    "meinte", "erklärte", "klagt", "berichtet", "berichtete", "bestätigte", "wohnt", "lebt", "heiratete", "starb",
    "verordnete", "bat", "verließ", "kündigte", "weiß", "möchte", "dijo", "dice", "preguntó", "respondió", "llamó",
    "escribió", "quiere", "explicó", "añadió", "confirmó", "vive", "murió", "recetó", "refiere", "afirmó", "salió",
    "pidió", "sabe", "opina", "cree", "rechazó", "contestó",
];

/// Articles and similar words; a name rarely stands after them.
pub(super) const ARTICLES: &[&str] = &[
    "the", "a", "an", "this", "that", "these", "every", "any", "no", "some", "der", "die", "das", "den", "dem", "des",
    "ein", "eine", "einen", "einem", "einer", "eines", "kein", "keine", "im", "am", "zum", "zur", "vom", "beim", "el",
    "la", "los", "las", "un", "una", "unos", "unas", "al", "del",
];

/// Small words inside names.
pub(super) const CONNECTORS: &[&str] = &[
    "von", "van", "der", "den", "de", "del", "la", "las", "los", "da", "das", "do", "dos", "di", "du", "zu", "zur",
    "bin", "ibn", "al", "el", "y", "ter", "ten", "af", "vom",
];

/// Small words inside names of towns.
pub(super) const TOWN_CONNECTORS: &[&str] =
    &["an", "am", "im", "ob", "der", "de", "del", "la", "las", "los", "on", "upon", "under", "in", "bei", "vor"];

/// Words of a sentence that say where somebody is or was, so that a name after a preposition is a place.
pub(super) const LIVING: &[&str] = &[
    "live", "lives", "lived", "living", "born", "grew", "raised", "moved", "move", "moving", "resident", "residing",
    "resides", "place", "city", "town", "home", "travelled", "traveled", "settled", "hometown", "stayed", "nurse",
    "based", "located", "wohne", "wohnt", "wohnen", "wohnte", "wohnhaft", "lebt", "lebe", "leben", "lebte", "geboren",
    "aufgewachsen", "zog", "ziehe", "zieht", "gezogen", "ziehen", "umgezogen", "kommt", "komme", "kommen", "stammt",
    "stammen", "ursprünglich", "gebürtig", "statt", "findet", "wohnort", "vivo", "vive", "viven", "vivimos", "vivía",
    "nací", "nació", "nacido", "nacida", "creció", "crecí", "crecido", "mudó", "mudé", "mudamos", "originaria",
    "originario", "natural", "procedente", "reside", "residente", "vecino", "vecina", "será", "reunión", "ubicada",
    "ubicado", "domiciliado", "domiciliada", "enfermera", "krankenschwester",
];

/// Prepositions before a place.
pub(super) const PLACE_PREPOSITIONS: &[&str] =
    &["in", "to", "from", "near", "nach", "aus", "en", "a", "de", "bei", "at", "outside", "around", "of"];

/// Labels whose value is a place.
pub(super) const PLACE_LABELS: &[&str] = &[
    "city", "town", "ort", "stadt", "wohnort", "geburtsort", "ciudad", "localidad", "población", "municipio",
    "birthplace", "residence", "village", "hometown", "address", "adresse", "anschrift", "dirección", "domicilio",
];

/// Labels and words whose value is an organisation.
pub(super) const FIRM_LABELS: &[&str] = &[
    "employer", "company", "organisation", "organization", "supplier", "vendor", "firm", "firma", "arbeitgeber",
    "lieferant", "unternehmen", "empresa", "proveedor", "empleador", "compañía", "organización", "arbeitgeberin",
    "dienstleister", "auftraggeber", "insurer", "versicherer", "aseguradora", "bank", "contractor", "startup",
];

/// Words of a sentence that say that an organisation follows `for`, `at`, `by`, `with`, `bei`, `en`.
pub(super) const WORKING: &[&str] = &[
    "work", "works", "worked", "working", "job", "interview", "interviewed", "intern", "employed", "study", "studies",
    "contract", "money", "arbeite", "arbeitet", "arbeitete", "arbeiten", "gespräch", "studiert", "angestellt",
    "vertrag", "klage", "geld", "beschäftigt", "trabajo", "trabaja", "trabajaba", "entrevista", "estudia", "contrato",
    "dinero", "demanda", "case", "überwies", "transfirió", "transferred", "bewerbung", "praktikum", "prácticas",
];

/// Prepositions before an organisation.
pub(super) const FIRM_PREPOSITIONS: &[&str] =
    &["for", "at", "between", "against", "bei", "für", "zwischen", "gegen", "an", "en", "para", "entre", "contra", "a", "to", "with"];

/// Checks whether a list holds a word, whatever its case.
pub(super) fn has(list: &[&str], word: &str) -> bool {
    let lower = word.to_lowercase();
    list.contains(&lower.as_str())
}
